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

// Config configures a Server.
type Config struct {
	// Listener is the listener to serve on. Run closes it.
	Listener net.Listener
	// Ready returns nil if the proxy is ready, else an error that is a sentence.
	// It must return when ctx ends. It is required.
	Ready func(ctx context.Context) error
	// Draining reports whether the proxy is shutting down, and so not ready. It
	// may be nil.
	Draining func() bool
	// Notes returns sentences that are added to the readiness answer, such as the
	// age of the configuration and rejections. It must be fast. It may be nil.
	Notes func() []string
	// MetricsLocalOnly serves metrics only to peers on this machine.
	MetricsLocalOnly bool
	// PlainMetrics serves metrics without compression.
	PlainMetrics bool
	// EnvoyMetricsURL is Envoy's metrics endpoint; "" means none. It is never
	// ENVOY_PROMETHEUS_PORT: that port forwards requests to /stats/envoy.
	EnvoyMetricsURL string
	// EnvoyApart leaves Envoy's metrics out of the merged ones.
	EnvoyApart bool
	// AppScrape are the application's metrics endpoints.
	AppScrape []AppScrape
	// Gatherer gathers the agent's own metrics. It may be nil.
	Gatherer prometheus.Gatherer
	// Probers are the application's probes. It may be nil.
	Probers Probers
	// HookSources are the addresses that may run the application's lifecycle hooks.
	HookSources HookSources
	// InstanceIP is the default host of probes.
	InstanceIP string
	// ProbeSourceIP is the source address of probes, which traffic capture does
	// not redirect; "" means that the kernel chooses it.
	ProbeSourceIP string
	// Loopback are the functions that only peers on this machine may use.
	Loopback Loopback
	// Logger is required.
	Logger *slog.Logger
	// Registerer registers the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// Loopback are the functions that only peers on this machine may use.
type Loopback struct {
	// Quit is called after POST /quitquitquit has been answered. If it is nil, the
	// path does not exist.
	Quit func()
	// Drain is called by POST /drain, which is answered when it returns. Its
	// context is done when the peer has disconnected. If it is nil, the path does
	// not exist.
	Drain func(ctx context.Context)
	// Profiling serves /debug/pprof/.
	Profiling bool
	// Logging prints the levels of the log at /debug/logging, and changes them by POST. If it is nil,
	// the path does not exist.
	Logging http.Handler
	// Debug are further debug paths, GET only. It may be nil.
	Debug map[string]http.Handler
}

// Server serves the status port.
type Server struct {
	cfg     Config
	metrics *metrics
	ready   *readiness
	node    *knownNode
	envoy   *source   // or nil
	sources []*source // of the merged metrics, Envoy first
	scrapes scrapeSlots
}

// New returns a server. It starts nothing.
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
		s.envoy = &source{kind: envoyKind, url: cfg.EnvoyMetricsURL}
		if !cfg.EnvoyApart {
			s.sources = append(s.sources, s.envoy)
		}
	}
	for _, app := range cfg.AppScrape {
		s.sources = append(s.sources, &source{kind: "application", url: app.URL()})
	}
	return s, nil
}

// Run serves until ctx is done, then waits briefly for requests in flight.
func (s *Server) Run(ctx context.Context) error {
	// There is no write timeout: profiles and scrapes may take long. The listener
	// closes connections whose peer does not read.
	server := connlimit.NewHTTPServer(s.handler(), connlimit.HTTP{HeaderBytes: maxHeaderBytes, Header: readHeaderTimeout, Idle: idleTimeout})
	server.ErrorLog = slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug)
	if s.cfg.Probers.hooks() && s.cfg.HookSources.guesses() {
		s.cfg.Logger.Warn("the address of the node is unknown: only the default gateway and this network namespace may run lifecycle hooks; set HOST_IP to the node's address, or OUTRIGGER_HOOK_SOURCES")
	}
	s.cfg.Logger.Info("serving the status port", "address", s.cfg.Listener.Addr().String())
	served, listener := make(chan error, 1), s.limit()
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		_ = server.Close() // closes open connections
		return fmt.Errorf("serve the status port %s: %w", s.cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		// A peer reads slowly: close its connection.
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
	metrics := func(path string, handler http.HandlerFunc) {
		if s.cfg.MetricsLocalOnly {
			handler = loopbackPeer(handler)
		}
		mux.HandleFunc(path, handler)
	}
	metrics("/stats/prometheus", s.serveMetrics)
	metrics("/metrics", s.serveMetrics)
	if s.envoy != nil {
		metrics("/stats/envoy", s.serveEnvoy)
	}
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
	if s.cfg.Loopback.Logging != nil {
		mux.HandleFunc("/debug/logging", loopbackOnly(s.serveLogging))
	}
	for path, handler := range s.cfg.Loopback.Debug {
		mux.HandleFunc(path, loopbackOnly(getOnly(handler)))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusNotFound, "there is nothing at "+strconv.Quote(r.URL.Path)+" of the status port")
	})
	return boundBody(mux)
}

// boundBody sets a read deadline for requests with a body: no handler reads one, and no
// connection must wait for its end.
func boundBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Only writers of tests do not support deadlines.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readBodyTimeout))
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// answer writes a sentence as a plain text answer.
func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // a disconnected peer needs no answer
}

// metrics are the metrics of the status port.
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
			Name: "istio_agent_scrape_failures_total", Help: "Parts missing from the merged metrics, by type: agent, envoy, application.",
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

// source is an endpoint whose metrics are merged with others.
type source struct {
	kind, url string
	failing   atomic.Bool // logs an outage once instead of with each scrape
}
