// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if filepath.Base(os.Args[0]) == "client" {
		fail(patientClient(os.Args[1:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if len(os.Args) < 2 {
		fail("usage: app pause | serve ADDRESS | get URL | ask ADDRESS | load URL RATE ADDRESS")
	}
	var err error
	switch command, args := os.Args[1], os.Args[2:]; {
	case command == "pause":
		<-ctx.Done()
	case command == "serve" && len(args) == 1:
		err = serve(ctx, args[0])
	case command == "get" && len(args) == 1:
		err = get(ctx, args[0])
	case command == "ask" && len(args) == 1:
		err = ask(args[0])
	case command == "load" && len(args) == 3:
		err = load(ctx, args[0], args[1], args[2])
	default:
		err = fmt.Errorf("unexpected arguments %q", os.Args[1:])
	}
	if err != nil {
		fail(err)
	}
}

// patientClient runs the client of the conformance tests in this process. Its default timeout is 5 s
// for hundreds of requests together, which take longer on a busy machine.
func patientClient(args []string) error {
	return syscall.Exec("/usr/local/bin/echo-client", append([]string{"client", "--timeout=5m"}, args...), os.Environ())
}

func fail(reason any) {
	fmt.Fprintln(os.Stderr, "app:", reason)
	os.Exit(1)
}

// quiet is how long a terminating server waits for another request, and atMost is how long it
// serves then.
const (
	quiet  = 30 * time.Second
	atMost = 100 * time.Second
)

// serve answers every request with the name of the Pod, and its headers as JSON below /headers. On
// SIGTERM it serves until it receives no more requests, except for /health, and finishes open ones.
func serve(ctx context.Context, address string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	var last atomic.Int64 // time of the last request, in nanoseconds
	asked := func() { last.Store(time.Now().UnixNano()) }
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		asked()
		_, _ = fmt.Fprintln(w, host)
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		asked()
		_ = json.NewEncoder(w).Encode(r.Header)
	})
	server := &http.Server{Addr: address, Handler: mux}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		asked()
		for began := time.Now(); time.Since(time.Unix(0, last.Load())) < quiet && time.Since(began) < atMost; {
			time.Sleep(100 * time.Millisecond)
		}
		ended <- server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return <-ended
}
