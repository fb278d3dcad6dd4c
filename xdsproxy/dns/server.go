// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

const defaultMaxStale = time.Hour

// Config is the configuration of a Server.
type Config struct {
	// Sockets are the sockets to serve; see [Listen]. Run closes them.
	Sockets []Socket
	// Domain is the DNS domain of the proxy, with or without its namespace as prefix. If empty,
	// services have no short names.
	Domain string
	// Namespace is the namespace of the proxy. Its services can be addressed by a single label.
	Namespace string
	// Upstream resolves names that are not in the table.
	Upstream Upstream
	// MaxStale is the maximum age of a last answer that is returned because upstream does not
	// respond. 0 means one hour. A negative value disables last answers.
	MaxStale time.Duration
	// Logger is required.
	Logger *slog.Logger
	// Registerer registers the metrics. nil means none.
	Registerer prometheus.Registerer
}

// Upstream resolves names that are not in the table.
type Upstream struct {
	// Servers are addresses with ports, in the order in which they are queried.
	Servers []string
	// Search are the search domains that the application's resolvers append to names.
	Search []string
	// Parallel queries all servers at once.
	Parallel bool
	// Timeout is the total time limit for upstream. 0 means five seconds.
	Timeout time.Duration

	files []string // the files that it was read from; nil if none
}

// Server is the local DNS server.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	upstream atomic.Pointer[resolvers]
	building sync.Mutex // guards zone; held while a table is built
	zone     zone
	named    chan struct{} // closed with the first table

	table  atomic.Pointer[table]  // nil before the first one
	source atomic.Pointer[[]byte] // the source of the table, encoded, which takes a third of the memory

	slots   chan struct{} // one for each request that waits for upstream
	flights flights
	sent    sentIDs
	stale   *staleAnswers
	loop    sync.Once      // logs once that requests loop back
	running sync.WaitGroup // goroutines other than those of the sockets
}

// New checks the configuration and returns a Server. It starts nothing.
func New(cfg Config) (*Server, error) {
	switch {
	case len(cfg.Sockets) == 0:
		return nil, errors.New("the DNS server has no socket")
	case cfg.Logger == nil:
		return nil, errors.New("the DNS server has no logger")
	case cfg.Upstream.Timeout < 0:
		return nil, fmt.Errorf("the timeout of DNS servers is %s: it must be positive", cfg.Upstream.Timeout)
	}
	for _, server := range cfg.Upstream.Servers {
		if host, _, err := net.SplitHostPort(server); err != nil || host == "" {
			return nil, fmt.Errorf("%q is not the address of a DNS server: write it with its port", server)
		}
	}
	if cfg.Upstream.Timeout == 0 {
		cfg.Upstream.Timeout = defaultTimeout
	}
	if cfg.MaxStale == 0 {
		cfg.MaxStale = defaultMaxStale
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, named: make(chan struct{}),
		metrics: newMetrics(cfg.Registerer), slots: make(chan struct{}, maxForwards),
		flights: flights{byKey: map[flightKey]*flight{}}, sent: sentIDs{ids: map[sentID]int{}}, stale: newStaleAnswers(cfg.MaxStale),
	}
	s.setUpstream(cfg.Upstream.Servers, cfg.Upstream.Search)
	return s, nil
}

// Update replaces the table. It may be called at any time, even before Run.
func (s *Server) Update(from *nds.Table) {
	if from == nil {
		from = &nds.Table{}
	}
	s.building.Lock()
	defer s.building.Unlock()
	s.build(from)
	encoded := from.Marshal()
	s.source.Store(&encoded)
	s.log.Debug("the name table has changed", "count", len(from.Hosts))
}

// build builds the lookup structure of a table. The caller must hold building.
func (s *Server) build(from *nds.Table) {
	t, unusable := s.zone.build(from)
	if s.table.Swap(t) == nil {
		close(s.named)
	}
	s.metrics.hosts.Set(float64(len(from.Hosts) - unusable))
	if unusable > 0 {
		s.log.Debug("hosts without a usable name or address are left to upstream", "count", unusable)
	}
}

// Ready reports whether there is a table.
func (s *Server) Ready() bool { return s.table.Load() != nil }

// Named returns a channel that is closed once there is a table.
func (s *Server) Named() <-chan struct{} { return s.named }

// Table returns the table as received, or nil before the first one.
func (s *Server) Table() *nds.Table {
	encoded := s.source.Load()
	if encoded == nil {
		return nil
	}
	t, err := nds.Unmarshal(*encoded)
	if err != nil {
		return &nds.Table{} // names that are not UTF-8, which no control plane can send
	}
	return t
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, socket := range s.cfg.Sockets {
		s.log.Info("serving DNS", "address", socket.UDP.LocalAddr().String())
		g.Go(func() error { return s.serveUDP(ctx, socket.UDP) })
		g.Go(func() error { return s.serveTCP(ctx, socket.TCP) })
	}
	if files := s.cfg.Upstream.files; files != nil {
		s.running.Go(func() { s.follow(ctx, files) })
	}
	err := g.Wait()
	s.running.Wait()
	return err
}

// respond answers a request immediately, if possible, in dst, which is empty. Otherwise it returns
// the query to forward to upstream. If both results are nil, the request is dropped.
func (s *Server) respond(dst []byte, q *query, msg []byte, tcp bool) (reply []byte, ask *forward) {
	s.metrics.requests.Inc()
	switch code := q.parse(msg, tcp); code {
	case fine:
	case dropped:
		s.metrics.refused.WithLabelValues(reasonMalformed).Inc()
		return nil, nil
	case miekg.RcodeFormatError:
		s.metrics.refused.WithLabelValues(reasonMalformed).Inc()
		return refuse(dst, q, code), nil
	default:
		s.metrics.refused.WithLabelValues(reasonUnsupported).Inc()
		return refuse(dst, q, code), nil
	}
	known := false
	if t := s.table.Load(); t != nil {
		if reply, known = t.answer(dst, q); reply != nil {
			return reply, nil
		}
	}
	return nil, newForward(q, tcp, known)
}

// waiting forwards a request to upstream, unless too many are waiting already. It calls send once,
// with nil on shutdown.
func (s *Server) waiting(ctx context.Context, f *forward, send func([]byte)) {
	select {
	case s.slots <- struct{}{}:
	default:
		s.metrics.refused.WithLabelValues(reasonOverload).Inc()
		send(s.lastAnswer(f, s.stale.get(f.staleKey(), time.Now())))
		return
	}
	s.running.Go(func() {
		defer func() { <-s.slots }()
		send(s.serve(ctx, f))
	})
}

// pause waits briefly after a temporary socket error. It returns false on shutdown.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
