// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

const (
	// maxCapture is how long requests are recorded at most, and maxCaptured how many.
	maxCapture  = 10 * time.Minute
	maxCaptured = 1_000_000
	// settle is how long Envoy may take to log the requests that have ended.
	settle = 200 * time.Millisecond
	// trailerDropped is the trailer with the number of requests that were not recorded, see
	// [xdsproxy.Capture.Dropped].
	trailerDropped = "Outrigger-Dropped"
)

// requestsHandler serves the requests to the workload for a time, as lines of JSON. ?for= is how
// long.
func requestsHandler(relay *xdsproxy.Proxy, admin *envoy.Admin) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil || length <= 0 || length > maxCapture {
			http.Error(w, fmt.Sprintf("for=%q must be a duration of at most %s, such as 30s", r.URL.Query().Get("for"), maxCapture), http.StatusBadRequest)
			return
		}
		capture, err := relay.Capture()
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		defer capture.End()
		// The client may have disconnected already.
		off := func() error { return admin.SetRuntime(context.WithoutCancel(r.Context()), node.RecordLog, "") }
		if err := admin.SetRuntime(r.Context(), node.RecordLog, "100"); err != nil {
			_ = off() // Envoy may have set it and only the answer was lost
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Trailer", trailerDropped)
		err = errors.Join(writeRequests(r.Context(), w, capture, length), off())
		if err == nil { // without the trailer, clients know that something is missing
			w.Header().Set(trailerDropped, strconv.FormatInt(capture.Dropped(), 10))
		}
	})
}

// writeRequests writes what is captured for a time.
func writeRequests(ctx context.Context, w http.ResponseWriter, capture *xdsproxy.Capture, length time.Duration) error {
	flush := http.NewResponseController(w).Flush
	if err := flush(); err != nil {
		return err
	}
	end := time.NewTimer(length + settle)
	defer end.Stop()
	for range maxCaptured {
		select {
		case line := <-capture.Lines:
			if _, err := w.Write(append(line, '\n')); err != nil {
				return err
			}
			if len(capture.Lines) == 0 {
				if err := flush(); err != nil {
					return err
				}
			}
		case <-end.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
