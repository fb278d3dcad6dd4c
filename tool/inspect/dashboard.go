// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

// Bounds of the dashboard.
const (
	maxTabs       = 64      // connections
	maxPageAnswer = 8 << 20 // bytes of an answer to the page
	maxQuestion   = 16 << 10
	slowPanels    = 6 // findings and outages change slowly: they are collected in every sixth interval
)

// page are the files of the dashboard.
//
//go:embed page
var page embed.FS

// dashboardFlags are the flags of dashboard.
type dashboardFlags struct {
	topFlags
	address string
}

func newDashboardCommand(cfg Config) *cobra.Command {
	f := dashboardFlags{topFlags: topFlags{reachFlags: reachFlags{askFlags: askFlags{cfg: cfg, output: outTable}}}}
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page that shows the running mesh",
		Long: `Serve a page that shows the running mesh to the browsers of this machine, until
Ctrl-C: what is wrong, proxies with their state and how long they last in an outage,
who calls whom with rates, success and latency as a picture and a map, findings with
their objects, the last changes and what they changed, and a form that explains a
request. It shows what status, top, analyze, history, diff and explain request print.

The page changes nothing, and loads nothing from elsewhere. While a tab shows it,
the mesh is asked once in each interval, for all tabs together; otherwise it is not
asked. Every user of this machine can open the page.

` + reachCure + `.`,
		Example: "  outrigger dashboard\n  outrigger dashboard --address 127.0.0.1:8088\n" +
			"  outrigger dashboard -n shop --interval 15s\n  outrigger dashboard --control 10.0.0.1:15014,10.0.0.2:15014",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.addControls(cmd)
	f.addAgents(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.namespace, "namespace", "n", "", "traffic and outages of the proxies of this namespace only")
	flags.DurationVar(&f.interval, "interval", defaultInterval, "time between two questions to the mesh, from "+minInterval.String()+" to "+maxInterval.String())
	flags.StringVar(&f.address, "address", "127.0.0.1:0", "loopback address and port of the page; port 0 is any free one")
	return cmd
}

func (f *dashboardFlags) run(cmd *cobra.Command) error {
	if err := f.check(""); err != nil {
		return err
	}
	if _, err := f.addresses(); err != nil && len(f.agents) == 0 {
		return err
	}
	address, err := netip.ParseAddrPort(f.address)
	if err != nil || !connlimit.Loopback(address.Addr()) {
		return f.cfg.Exit(exitUsage, fmt.Errorf("--address %s is not a loopback address with a port: write one as in 127.0.0.1:8088", f.address))
	}
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return f.cfg.Exit(exitFailed, fmt.Errorf("serve the page: %w", err))
	}
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), "The dashboard is at http://%s/ until Ctrl-C.\n", listener.Addr()) // the terminal may be closed
	return f.serve(cmd.Context(), listener)
}

// serve serves the page until ctx is done.
func (f *dashboardFlags) serve(ctx context.Context, listener net.Listener) error {
	// There is no write timeout: an answer waits for the mesh, at most as long as a collection may take.
	server := connlimit.NewHTTPServer(f.handler(ctx), connlimit.HTTP{HeaderBytes: maxQuestion, Header: late, Read: late, Idle: time.Minute})
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing is lost: tabs ask again
	err := server.Serve(connlimit.Listen(listener, connlimit.Config{
		Total: maxTabs, PerSource: maxTabs, Reserved: connlimit.Loopback, Evict: true, Unused: late, Stall: late,
	}))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return f.cfg.Exit(exitFailed, fmt.Errorf("serve the page: %w", err))
}

// handler answers the requests of tabs. Collections end with ctx, not with the tab that began them.
func (f *dashboardFlags) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	mux.Handle("GET /{$}", http.FileServerFS(files))
	mux.Handle("GET /{file}", http.FileServerFS(files))
	for name, p := range f.panels() {
		mux.HandleFunc("GET /api/"+name, func(w http.ResponseWriter, _ *http.Request) { send(w, p.answer(ctx)) })
	}
	mux.HandleFunc("GET /api/explain", f.explain())
	mux.HandleFunc("GET /api/difference", f.past(f.differenceOf))
	mux.HandleFunc("GET /api/object", f.past(f.newest))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cache-Control":                "no-store",
		} {
			w.Header().Set(name, value)
		}
		if err := localonly.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// send writes an answer in JSON.
func send(w http.ResponseWriter, answer []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the tab may be closed
}
