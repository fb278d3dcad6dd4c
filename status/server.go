// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

const (
	readHeaderTimeout = 5 * time.Second
	readBodyTimeout   = time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 2 * time.Second
	maxHeaderBytes    = 32 << 10
)

// Config is what a Server needs.
type Config struct {
	// Listener is where to serve; Run closes it.
	Listener net.Listener
	// Ready answers nil when the proxy is ready, else a sentence. It must return when ctx ends. Required.
	Ready func(ctx context.Context) error
	// Draining tells whether the proxy is about to end, and so not ready. nil: never.
	Draining func() bool
	// Notes are sentences that stand beneath the answer, ready or not: how old
	// the configuration is, what Envoy rejected. It must be quick. nil: none.
	Notes func() []string
	// MetricsLocalOnly keeps the metrics to peers on this machine.
	MetricsLocalOnly bool
	// EnvoyMetricsURL is Envoy's metrics endpoint. Empty: there is none to merge.
	EnvoyMetricsURL string
	// AppScrape are the application's metrics endpoints.
	AppScrape []AppScrape
	// Gatherer holds the agent's own metrics. nil: none.
	Gatherer prometheus.Gatherer
	// Probers are the application's probes. nil: none.
	Probers Probers
	// HookSources says who may run the application's lifecycle hooks.
	HookSources HookSources
	// InstanceIP is the host that probes are sent to when they name none.
	InstanceIP string
	// ProbeSourceIP is the address that probes come from, so that traffic
	// capture leaves them alone. Empty: the kernel chooses.
	ProbeSourceIP string
	// Loopback is what only peers on this machine may do.
	Loopback Loopback
	// Logger is required.
	Logger *slog.Logger
	// Registerer takes the metrics. nil: none.
	Registerer prometheus.Registerer
}

// Loopback is what only peers on this machine may do.
type Loopback struct {
	// Quit is called after POST /quitquitquit has been answered. nil: there is no such path.
	Quit func()
	// Drain is called by POST /drain, which is answered when it returns. That
	// its context is done means that nobody waits any more. nil: there is no such path.
	Drain func(ctx context.Context)
	// Profiling serves /debug/pprof/.
	Profiling bool
	// Debug are more paths to look into the agent, GET only. nil: none.
	Debug map[string]http.Handler
}

// Server serves the status port.
type Server struct {
	cfg     Config
	metrics *metrics
	ready   *readiness
	node    *knownNode
	sources []*source // Envoy first
	scrapes scrapeSlots
}

// New checks the configuration. It starts nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case cfg.Listener == nil:
		return nil, errors.New("the status server has no listener")
	case cfg.Ready == nil:
		return nil, errors.New("the status server has no readiness function")
	case cfg.Logger == nil:
		return nil, errors.New("the status server has no logger")
	case cfg.InstanceIP == "" && len(cfg.Probers) > 0:
		return nil, errors.New("application probes are configured, but no address to send them to: set INSTANCE_IP")
	case cfg.ProbeSourceIP != "" && net.ParseIP(cfg.ProbeSourceIP) == nil:
		return nil, fmt.Errorf("the source address of probes, %q, is not an IP address", cfg.ProbeSourceIP)
	}
	if err := cfg.Probers.checkLoop(cfg.Listener.Addr()); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: m, node: newKnownNode(cfg.HookSources, cfg.Listener.Addr())}
	begin := time.Now()
	s.ready = &readiness{ask: cfg.Ready, first: func() { m.startup.Set(time.Since(begin).Seconds()) }}
	if cfg.EnvoyMetricsURL != "" {
		s.sources = append(s.sources, &source{kind: "envoy", url: cfg.EnvoyMetricsURL})
	}
	for _, app := range cfg.AppScrape {
		s.sources = append(s.sources, &source{kind: "application", url: app.URL()})
	}
	return s, nil
}

// Run serves until ctx is done, then lets requests in flight finish for a moment.
func (s *Server) Run(ctx context.Context) error {
	// There is no timeout for writing: profiles and scrapes take as long as they were
	// asked to. The listener ends connections on which nothing is read.
	server := connlimit.NewHTTPServer(s.handler(), connlimit.HTTP{HeaderBytes: maxHeaderBytes, Header: readHeaderTimeout, Idle: idleTimeout})
	server.ErrorLog = slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug)
	if s.cfg.Probers.hooks() && s.cfg.HookSources.guesses() {
		s.cfg.Logger.Warn("the address of the node is not known: lifecycle hooks run for the default gateway and this network namespace only; set HOST_IP to the node's address, or OUTRIGGER_HOOK_SOURCES")
	}
	s.cfg.Logger.Info("status port is served", "address", s.cfg.Listener.Addr().String())
	served, listener := make(chan error, 1), s.limit()
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		_ = server.Close() // connections that are open end with it
		return fmt.Errorf("serve the status port %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		// Somebody reads slowly: their connection is cut.
		_ = server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the status port %s: %w", s.cfg.Listener.Addr(), err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz/ready", s.serveReady)
	metrics := s.serveMetrics
	if s.cfg.MetricsLocalOnly {
		metrics = loopbackPeer(metrics)
	}
	mux.HandleFunc("/stats/prometheus", metrics)
	mux.HandleFunc("/metrics", metrics)
	mux.HandleFunc(probePrefix, s.serveProbe)
	mux.HandleFunc(hookPrefix, s.serveProbe)
	if s.cfg.Loopback.Quit != nil {
		mux.HandleFunc("/quitquitquit", loopbackOnly(s.serveQuit))
	}
	if s.cfg.Loopback.Drain != nil {
		mux.HandleFunc("/drain", loopbackOnly(s.serveDrain))
	}
	if s.cfg.Loopback.Profiling {
		handleProfiles(mux)
	}
	for path, handler := range s.cfg.Loopback.Debug {
		mux.HandleFunc(path, loopbackOnly(getOnly(handler)))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusNotFound, "there is nothing at "+strconv.Quote(r.URL.Path)+" of the status port")
	})
	return boundBody(mux)
}

// boundBody ends the patience with a peer that announces a body: nothing here
// reads one, and no connection waits for its end.
func boundBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// A writer that cannot have a deadline is one of a test.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readBodyTimeout))
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// answer writes a sentence as plain text.
func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // a peer that has gone needs no answer
}

// metrics are the status port's own.
type metrics struct {
	scrapes  prometheus.Counter
	failures *prometheus.CounterVec
	startup  prometheus.Gauge
	closed   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		scrapes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "istio_agent_scrapes_total", Help: "Requests for the merged metrics.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "istio_agent_scrape_failures_total", Help: "Parts left out of the merged metrics, by type: agent, envoy, application.",
		}, []string{"type"}),
		startup: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "istio_agent_startup_duration_seconds", Help: "Time from the agent's start to the first time it was ready.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_agent_status_connections_closed_total", Help: "Connections of the status port that a limit closed, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.scrapes, m.failures, m.startup, m.closed} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of the status port: %w", err)
		}
	}
	return m, nil
}

// source is an endpoint whose metrics are merged.
type source struct {
	kind, url string
	failing   atomic.Bool // so that an outage is logged once, not with each scrape
}
