// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	usage       = "usage: bookinfo productpage|details|reviews|ratings --listen ADDRESS [flags]"
	usageExit   = 2
	readTimeout = 10 * time.Second
	stopTimeout = 3 * time.Second
)

var errUsage = errors.New(usage)

// options are the command line flags, common to all roles.
type options struct {
	listen   string
	version  string
	details  string
	reviews  string
	ratings  string
	external string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(usageExit)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bookinfo:", err)
		os.Exit(1)
	}
}

// run serves one role until ctx is done.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	var o options
	flags := flag.NewFlagSet("bookinfo "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:9080", "address to listen on")
	flags.StringVar(&o.version, "version", "v1", "version of the reviews: v1 without stars, v2 with black, v3 with red ones")
	flags.StringVar(&o.details, "details", "http://details:9080", "where the product page finds the details")
	flags.StringVar(&o.reviews, "reviews", "http://reviews:9080", "where the product page finds the reviews")
	flags.StringVar(&o.ratings, "ratings", "http://ratings:9080", "where the reviews find the ratings")
	flags.StringVar(&o.external, "external", "", "where the details find the publisher, outside of the mesh; nowhere if empty")
	if err := flags.Parse(args[1:]); err != nil {
		return errUsage
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "healthy"})
	})
	if err := register(mux, args[0], o); err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	_, _ = fmt.Fprintf(out, "%s listens on %s\n", args[0], l.Addr()) // the output may be closed
	return serve(ctx, l, mux)
}

// register adds the paths of a role. Each role responds to /: the backends with their data about
// the only book.
func register(mux *http.ServeMux, role string, o options) error {
	switch role {
	case "productpage":
		(&productPage{details: o.details, reviews: o.reviews}).register(mux)
		return nil
	case "details":
		(&details{external: o.external}).register(mux)
	case "reviews":
		(&reviews{version: o.version, ratings: o.ratings}).register(mux)
	case "ratings":
		mux.HandleFunc("GET /ratings/{id}", rate)
	default:
		return fmt.Errorf("unknown role %q\n%w", role, errUsage)
	}
	mux.Handle("GET /{$}", http.RedirectHandler("/"+role+"/0", http.StatusSeeOther))
	return nil
}

// serve serves requests until ctx is done, and then waits for requests in progress.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: readTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return server.Shutdown(stop)
}
