// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// The service and methods of envoy.service.discovery.v3 that are relayed.
const (
	service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	methodSotW  = "StreamAggregatedResources"
	methodDelta = "DeltaAggregatedResources"
)

// Config is what a [Proxy] needs.
type Config struct {
	// Listener is the Unix socket that Envoy dials; Run closes it.
	Listener net.Listener
	Upstream UpstreamConfig
	Logger   *slog.Logger
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
	// Rejected is told that the Envoy with a process id rejects what no other
	// one rejects: during a hot restart there are two. Optional.
	Rejected func(pid int, typeURL, reason string)
}

// Proxy relays ADS streams.
type Proxy struct {
	listener net.Listener
	upstream *upstream
	log      *slog.Logger
	metrics  *metrics

	mu sync.Mutex // guards what follows
	// current holds the newest downstream stream of each process. Envoy has
	// one; a second one means that the first is dead and has not noticed.
	// During a hot restart there are two Envoys.
	current map[int]*stream

	rejected func(pid int, typeURL, reason string)
	joined   atomic.Int32
}

var errReplaced = errors.New("a newer stream took this stream's place")

// New checks the configuration. Nothing runs before Run.
func New(cfg Config) (*Proxy, error) {
	if cfg.Listener == nil {
		return nil, errors.New("xds proxy needs a listener")
	}
	if _, _, err := net.SplitHostPort(cfg.Upstream.Address); err != nil {
		return nil, fmt.Errorf("control plane address %q is not host:port: %w", cfg.Upstream.Address, err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rejected == nil {
		cfg.Rejected = func(int, string, string) {}
	}
	m := newMetrics(cfg.Registerer)
	return &Proxy{
		listener: peerListener{cfg.Listener},
		current:  map[int]*stream{},
		rejected: cfg.Rejected,
		upstream: newUpstream(cfg.Upstream, cfg.Logger, m),
		log:      cfg.Logger,
		metrics:  m,
	}, nil
}

// Connected returns nil while a stream of the control plane is open.
func (p *Proxy) Connected() error {
	if p.joined.Load() > 0 {
		return nil
	}
	return fmt.Errorf("the control plane at %s cannot be reached", p.upstream.cfg.Address)
}

// Run serves until ctx ends, and returns nil then.
func (p *Proxy) Run(ctx context.Context) error {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 15 * time.Second, PermitWithoutStream: true}),
	)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: methodSotW, Handler: p.handler(methodSotW), ServerStreams: true, ClientStreams: true},
			{StreamName: methodDelta, Handler: p.handler(methodDelta), ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		// Stopped before it could begin, it says so.
		if err := server.Serve(p.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve xds: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	return g.Wait()
}

// handler relays one downstream stream until either side ends.
func (p *Proxy) handler(method string) grpc.StreamHandler {
	desc := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	return func(_ any, down grpc.ServerStream) error {
		ctx, cancel := context.WithCancelCause(down.Context())
		defer cancel(nil)
		s := &stream{proxy: p, down: down, end: cancel, pid: peerID(down.Context()), delta: method == methodDelta, method: method}
		p.enter(s)
		defer p.leave(s)
		up, conn, err := p.upstream.open(ctx, desc, "/"+service+"/"+method)
		if err != nil {
			return p.ended(down, err)
		}
		defer func() { _ = conn.Close() }() // nothing is left to lose

		s.up = up
		done := make(chan error, 2)
		go func() { done <- s.requests() }()
		go func() { done <- s.responses() }()
		select {
		case err = <-done:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return p.ended(down, err)
	}
}

// enter makes a stream the current one of its process and ends its predecessor.
func (p *Proxy) enter(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.current[s.pid]; old != nil {
		old.end(errReplaced)
	}
	p.current[s.pid] = s
}

// leave forgets a stream, unless another one has taken its place.
func (p *Proxy) leave(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current[s.pid] == s {
		delete(p.current, s.pid)
	}
}

// rejects notes whether a stream's Envoy rejects what it was sent last of a type,
// and tells whether it is the only one of several to do so.
func (p *Proxy) rejects(s *stream, typeURL string, does bool) (alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !does {
		delete(s.rejected, typeURL)
		return false
	}
	if s.rejected == nil {
		s.rejected = map[string]bool{}
	}
	s.rejected[typeURL] = true
	for _, other := range p.current {
		if other != s && other.rejected[typeURL] {
			return false
		}
	}
	return len(p.current) > 1
}

// ended accounts for the end of a downstream stream and gives the status
// that Envoy sees.
func (p *Proxy) ended(down grpc.ServerStream, err error) error {
	switch {
	case errors.Is(err, errReplaced):
		p.log.Warn("an older stream was ended because envoy opened a new one")
		p.metrics.envoyEnds.WithLabelValues(endType(true)).Inc()
		return status.Error(codes.Aborted, errReplaced.Error())
	case down.Context().Err() != nil, err == nil:
		p.metrics.envoyEnds.WithLabelValues(endType(true)).Inc()
		return nil
	}
	p.metrics.envoyEnds.WithLabelValues(endType(false)).Inc()
	return status.Errorf(codes.Unavailable, "stream to the control plane ended: %v", err)
}

// stream is one joined pair.
type stream struct {
	proxy  *Proxy
	down   grpc.ServerStream
	up     grpc.ClientStream
	end    context.CancelCauseFunc
	pid    int // of Envoy, 0 when it cannot be known
	delta  bool
	method string
	// rejected holds the types of which Envoy rejects what it was sent last.
	// It is guarded by the proxy's mutex.
	rejected map[string]bool
}

// requests carries Envoy's requests to the control plane. It returns nil when
// Envoy ended the stream.
func (s *stream) requests() error {
	for {
		var f frame
		if err := s.down.RecvMsg(&f); err != nil {
			// The downstream context says why; upstream hears of it when
			// the connection closes.
			return nil //nolint:nilerr // see above
		}
		s.look(&f)
		err := s.up.SendMsg(&f)
		f.free()
		if err != nil {
			if errors.Is(err, io.EOF) {
				// The stream has ended; responses receives the reason and
				// ends the handler with it.
				<-s.down.Context().Done()
				return nil
			}
			return err
		}
		s.proxy.metrics.requests.Inc()
	}
}

// look tells the log what Envoy rejects.
func (s *stream) look(f *frame) {
	r := readRequest(f.data.Materialize(), s.delta)
	if s.proxy.rejects(s, r.typeURL, r.rejected != "") {
		s.proxy.rejected(s.pid, r.typeURL, r.rejected)
	}
	if r.rejected != "" {
		s.proxy.metrics.rejected.WithLabelValues(r.typeURL).Inc()
		s.proxy.log.Warn("envoy rejected configuration and keeps what it had", "type_url", r.typeURL, "reason", r.rejected)
	}
}

// responses carries the control plane's responses to Envoy. It returns the
// reason for which the upstream stream ended.
func (s *stream) responses() error {
	// The header comes with the first response, or before it from a control
	// plane that took the stream and has nothing new to say. A stream that
	// was refused has none.
	header, err := s.up.Header()
	accepted := err == nil && header != nil
	if accepted {
		s.proxy.upstream.succeeded()
		s.proxy.metrics.connected.Inc()
		s.proxy.joined.Add(1)
		defer func() {
			s.proxy.joined.Add(-1)
			s.proxy.metrics.connected.Dec()
		}()
		s.proxy.log.Info("joined envoy to the control plane", "stream", s.method, "address", s.proxy.upstream.cfg.Address)
	}
	for {
		var f frame
		if err := s.up.RecvMsg(&f); err != nil {
			return s.upstreamEnded(err, !accepted)
		}
		s.proxy.metrics.responses.Inc()
		err := s.down.SendMsg(&f)
		f.free()
		if err != nil {
			return nil //nolint:nilerr // Envoy is gone; its context says why
		}
	}
}

// upstreamEnded accounts for the end of the upstream stream.
func (s *stream) upstreamEnded(err error, refused bool) error {
	expected := s.down.Context().Err() != nil || errors.Is(err, io.EOF)
	s.proxy.metrics.upstreamEnds.WithLabelValues(endType(expected)).Inc()
	if s.down.Context().Err() != nil {
		return nil
	}
	if refused {
		s.proxy.upstream.failed(err)
	} else {
		// A warning follows if it does not come back at once.
		s.proxy.log.Info("the control plane's stream ended, envoy keeps its configuration", "err", err)
	}
	if errors.Is(err, io.EOF) {
		return errors.New("closed by the control plane")
	}
	return err
}
