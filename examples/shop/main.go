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
	readTimeout  = 10 * time.Second
	stopTimeout  = 3 * time.Second
	usage        = "usage: shop frontend|catalog|orders --listen ADDRESS [flags]"
	usageExit    = 2
	maxBodyBytes = 64 << 10
)

// options are the command line flags, common to all roles.
type options struct {
	listen  string
	version string
	catalog string
	orders  string
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
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New(usage)

// run serves one role until ctx is done.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	role := args[0]
	var o options
	flags := flag.NewFlagSet("shop "+role, flag.ContinueOnError)
	flags.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address to listen on")
	flags.StringVar(&o.version, "version", "v1", "version of the catalog")
	flags.StringVar(&o.catalog, "catalog", "http://catalog:8080/", "where the frontend finds the catalog")
	flags.StringVar(&o.orders, "orders", "http://orders:8080/", "where the frontend finds the orders")
	if err := flags.Parse(args[1:]); err != nil {
		return errUsage
	}
	handler, err := newHandler(role, o)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	_, _ = fmt.Fprintf(out, "%s listens on %s\n", role, l.Addr()) // the output may be closed
	return serve(ctx, l, handler)
}

func newHandler(role string, o options) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	switch role {
	case "frontend":
		newFrontend(o.catalog, o.orders).register(mux)
	case "catalog":
		registerCatalog(mux, o.version)
	case "orders":
		(&orders{}).register(mux)
	default:
		return nil, fmt.Errorf("unknown role %q\n%w", role, errUsage)
	}
	return mux, nil
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
