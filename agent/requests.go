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

	"github.com/cenkalti/backoff/v4"

	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

const (
	// maxCapture is how long requests are recorded at most, and maxCaptured how many.
	maxCapture  = 10 * time.Minute
	maxCaptured = 1_000_000
	// maxRate is the highest rate of a tap, in requests a second.
	maxRate = 10_000
	// settle is how long Envoy may take to log the requests that have ended.
	settle = 200 * time.Millisecond
	// lastWrite is how long the last write may take.
	lastWrite = 5 * time.Second
	// offFirst and offLongest are the pauses between attempts to switch the log of Envoy off, and offAll
	// is how long they take in all. Clients wait as long for the end.
	offFirst, offLongest, offAll = 50 * time.Millisecond, 2 * time.Second, 10 * time.Second
	// trailerDropped is the trailer with the number of requests that were not recorded, see
	// [xdsproxy.Capture.Dropped].
	trailerDropped = "Outrigger-Dropped"
)

// requestsHandler serves requests of the workload for a time, as lines of JSON. [parseAsked] has the
// fields of the query. claims are those that a recording has. The log of Envoy is off again when the
// client disconnects.
func requestsHandler(relay *xdsproxy.Proxy, admin *envoy.Admin, claims []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := parseAsked(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		capture, err := relay.Capture(asked.selection(claims))
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		defer capture.End()
		// The client may have disconnected already.
		off := func() error {
			pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(offFirst), backoff.WithMaxInterval(offLongest), backoff.WithMaxElapsedTime(offAll))
			return backoff.Retry(func() error { return admin.SetRuntime(context.WithoutCancel(r.Context()), "", asked.logs...) }, pause)
		}
		if err := admin.SetRuntime(r.Context(), strconv.Itoa(asked.sample), asked.logs...); err != nil {
			_ = off() // Envoy may have set it and only the answer was lost
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/jsonl")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Trailer", trailerDropped)
		err = errors.Join(writeRequests(r.Context(), w, capture, asked), off())
		if err == nil { // without the trailer, clients know that something is missing
			w.Header().Set(trailerDropped, strconv.FormatInt(capture.Dropped(), 10))
		}
	})
}

// writeRequests writes what is captured for a time. In a tap the number of dropped requests is among
// the lines each second in which it has changed.
func writeRequests(ctx context.Context, w http.ResponseWriter, capture *xdsproxy.Capture, asked *asked) error {
	controller := http.NewResponseController(w)
	flush := controller.Flush
	// A client that reads nothing must not keep the log on. Only writers of tests have no deadlines.
	_ = controller.SetWriteDeadline(time.Now().Add(asked.length + settle + lastWrite))
	if err := flush(); err != nil {
		return err
	}
	end := time.NewTimer(asked.length + settle)
	defer end.Stop()
	var second <-chan time.Time
	if asked.rate > 0 {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		second = ticker.C
	}
	dropped := int64(0)
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
		case <-second:
			if n := capture.Dropped(); n != dropped {
				dropped = n
				if _, err := fmt.Fprintf(w, "{\"dropped\":%d}\n", n); err != nil {
					return err
				}
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
