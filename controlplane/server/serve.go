// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery"
	"github.com/outrigger-mesh/outrigger/controlplane/replicas"
	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

func absolute(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("config directory %s: %w", dir, err)
	}
	return abs, nil
}

// defaultRevision is the revision whose service has no revision in its name.
const defaultRevision = "default"

// serverNames returns the names of the control plane's certificate: those of
// pilot-discovery, the user's, the host of the discovery address that the mesh config
// tells the proxies, and the address of the secure port.
func serverNames(cfg Config, discoveryAddress string) (names []string, ips []net.IP) {
	hosts := []string{"localhost"}
	services := []string{"istiod", "istiod-remote", "istio-pilot"}
	if cfg.Revision != "" && cfg.Revision != defaultRevision {
		services = append(services, "istiod-"+cfg.Revision)
	}
	for _, service := range services {
		hosts = append(hosts, service+"."+cfg.Namespace+".svc", service+"."+cfg.Namespace+".svc."+cfg.Domain)
	}
	hosts = append(hosts, strings.Split(cfg.CustomHosts, ",")...)
	for _, address := range []string{discoveryAddress, cfg.Listen.Secure} {
		if host, _, err := net.SplitHostPort(address); err == nil {
			hosts = append(hosts, host)
		}
	}
	hosts = append(hosts, "127.0.0.1", "::1")
	for _, h := range hosts {
		h = strings.TrimSpace(h)
		ip := net.ParseIP(h)
		switch {
		case ip == nil && h != "" && !slices.Contains(names, h):
			names = append(names, h)
		case ip != nil && !ip.IsUnspecified() && !slices.ContainsFunc(ips, ip.Equal):
			ips = append(ips, ip)
		}
	}
	return names, ips
}

// ports are the servers and their listeners.
type ports struct {
	limits            *limits
	secure, plaintext *grpc.Server // nil when off
	// drains end the streams of these servers.
	drains struct{ secure, plaintext drain }
	// stopping is true once the server is to end: after linger it shuts down, within shutdown.
	stopping         atomic.Bool
	linger, shutdown time.Duration
	hurry            <-chan struct{}
	http, monitoring *http.Server // monitoring is nil when merged into http
	admin            *http.Server // serves administrators on a socket; nil when off
	webhooks         *http.Server // serves the API server on a separate port; nil without a cluster
	listeners        listeners
}

// listeners are bound before anything runs, so that a port in use ends the program.
type listeners struct {
	secure, plaintext, http, webhooks, monitoring, admin net.Listener
}

// run serves on all ports until ctx is done; drain stops the gRPC servers.
func (p *ports) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	p.serveGRPC(g, "secure", p.secure, p.listeners.secure)
	p.serveGRPC(g, "plaintext", p.plaintext, p.listeners.plaintext)
	p.serveHTTP(ctx, g, "http", p.http, p.listeners.http)
	p.serveHTTP(ctx, g, webhooksPort, p.webhooks, p.listeners.webhooks)
	p.serveHTTP(ctx, g, "monitoring", p.monitoring, p.listeners.monitoring)
	p.serveHTTP(ctx, g, "admin", p.admin, p.listeners.admin)
	return g.Wait()
}

// newGRPCServer creates a server for ADS. d ends its streams.
func (p *ports) newGRPCServer(cfg Config, creds credentials.TransportCredentials, d *drain, opts ...grpc.ServerOption) *grpc.Server {
	return p.limits.grpcServer(cfg, creds, append(
		opts,
		grpc.StreamInterceptor(d.intercept),
		grpc.UnaryInterceptor(d.interceptCall),
		grpc.ForceServerCodecV2(discovery.Codec()),
		grpc.ReadBufferSize(1<<10),   // per connection; most requests are small acknowledgements
		grpc.WriteBufferSize(16<<10), // per connection that is being written to: all of them during a push
	)...)
}

// useConnection marks the connection of a stream as in use, on the port without
// authentication.
func useConnection(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	connlimit.UseOf(ss.Context())
	return handle(srv, ss)
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// readiness returns the state of the server in a few words, and reports whether it is ready.
func (s *Server) readiness() (text string, ready bool) {
	switch {
	case s.ports.stopping.Load():
		return "shutting down", false
	case !s.discovery.Ready():
		return s.objects.loading(), false
	}
	return s.objects.readiness(), true
}

// state is readiness for the service manager. It does not return while a build of a snapshot lasts.
func (s *Server) state(ctx context.Context) (text string, ready bool) {
	s.debounce.Await(ctx)
	return s.readiness()
}

// newHTTP creates the health and the monitoring server.
func (s *Server) newHTTP(cfg Config, reg *prometheus.Registry) {
	health, monitor := http.NewServeMux(), http.NewServeMux()
	if cfg.Listen.Monitoring == "" {
		monitor = health
	} else {
		s.ports.monitoring = s.ports.limits.httpServer(monitor)
	}
	s.ports.http = s.ports.limits.httpServer(s.ports.leaving(health))
	health.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		text, ready := s.readiness()
		if !ready {
			http.Error(w, text, http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, text) // a disconnected client needs no answer
	})
	if s.replicas != nil {
		health.Handle("GET "+replicas.Path, s.replicas)
	}
	if s.webhooks != nil && s.ports.webhooks == nil {
		health.Handle("/validate", s.webhooks)
		health.Handle("/validate/", s.webhooks)
		health.Handle("/inject", s.webhooks)
		health.Handle("/inject/", s.webhooks)
	}
	monitor.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	monitor.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, cfg.Version) // as above
	})
	if cfg.DebugHTTP {
		s.serveDebug(health, monitor)
	}
	if cfg.Profile {
		monitor.Handle("/debug/pprof/", fromLoopback(pprof.Index))
		monitor.Handle("/debug/pprof/profile", fromLoopback(pprof.Profile))
		monitor.Handle("/debug/pprof/symbol", fromLoopback(pprof.Symbol))
		monitor.Handle("/debug/pprof/trace", fromLoopback(pprof.Trace))
	}
}

// fromLoopback refuses peers on other machines, and requests of web pages.
func fromLoopback(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := localonly.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

// bind opens every port, or none.
func (l *listeners) bind(cfg Config) error {
	var bound []net.Listener
	for _, p := range []struct {
		flag, address string
		to            *net.Listener
	}{
		{"secureGRPCAddr", cfg.Listen.Secure, &l.secure},
		{"grpcAddr", cfg.Listen.Plaintext, &l.plaintext},
		{"httpAddr", cfg.Listen.HTTP, &l.http},
		{"httpsAddr", cfg.Listen.Webhooks, &l.webhooks},
		{"monitoringAddr", cfg.Listen.Monitoring, &l.monitoring},
	} {
		if p.address == "" {
			continue
		}
		listener, err := net.Listen("tcp", p.address)
		if err != nil {
			for _, b := range bound {
				_ = b.Close() // the bind error is returned
			}
			return fmt.Errorf("--%s: %w", p.flag, err)
		}
		bound = append(bound, listener)
		*p.to = listener
	}
	if cfg.Listen.Admin != "" {
		listener, err := listenAdmin(cfg.Listen.Admin)
		if err != nil {
			for _, b := range bound {
				_ = b.Close() // as above
			}
			return err
		}
		l.admin = listener
	}
	return nil
}

// String returns the ports, for the log.
func (l *listeners) String() string {
	var out []string
	for _, p := range []struct {
		name string
		net.Listener
	}{{"secure", l.secure}, {"plaintext", l.plaintext}, {"http", l.http}, {"webhooks", l.webhooks}, {"monitoring", l.monitoring}, {"admin", l.admin}} {
		if p.Listener != nil {
			out = append(out, p.name+"="+p.Addr().String())
		}
	}
	return strings.Join(out, " ")
}

// serveGRPC runs a server until it is stopped. server may be nil.
func (p *ports) serveGRPC(g *errgroup.Group, port string, server *grpc.Server, l net.Listener) {
	if server != nil {
		g.Go(func() error {
			err := server.Serve(tracked{p.limits.grpcListener(port, l)})
			if errors.Is(err, grpc.ErrServerStopped) {
				return nil // stopped before the start
			}
			return err
		})
	}
}

// drain begins the shutdown: it ends all streams and stops the gRPC servers. Proxies
// keep their configuration.
func (p *ports) drain() {
	var all sync.WaitGroup
	for server, d := range map[*grpc.Server]*drain{p.secure: &p.drains.secure, p.plaintext: &p.drains.plaintext} {
		if server != nil {
			all.Go(func() { d.stop(server, p.shutdown) })
		}
	}
	all.Wait()
}

// leaving returns a handler that makes callers close their connection once the server is to
// end, so that the next request goes to another replica. A request that meets the end of an idle
// connection would fail: HTTP clients repeat no POST.
func (p *ports) leaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// serveHTTP runs a server until ctx ends. Requests in progress then have httpGrace. server may be
// nil.
func (p *ports) serveHTTP(ctx context.Context, g *errgroup.Group, port string, server *http.Server, l net.Listener) {
	if server == nil {
		return
	}
	l = p.limits.httpListener(port, l)
	g.Go(func() error {
		serve := server.Serve
		if server.TLSConfig != nil {
			serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpGrace)
		defer cancel()
		if server.Shutdown(within) == nil {
			return nil
		}
		return server.Close()
	})
}
