// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/internal/connlimit"
)

// The service and methods of envoy.service.discovery.v3 that are relayed.
const (
	service     = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	methodSotW  = "StreamAggregatedResources"
	methodDelta = "DeltaAggregatedResources"
)

// Types that the relay itself knows.
const (
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	healthType   = "type.googleapis.com/istio.v1.HealthInformation"
	// debugPrefix is the prefix of questions to the control plane, envoyPrefix that
	// of Envoy's types.
	debugPrefix = "istio.io/debug"
	envoyPrefix = "type.googleapis.com/envoy."
)

const (
	// defaultMaxMessage is far above what a proxy can use of one type. It protects
	// against nonsensical lengths.
	defaultMaxMessage = 256 << 20
	// maxConns is the limit of connections: an Envoy has one, as has each proxyless
	// application. maxStreams is the limit of streams of a connection, of which only
	// the newest is used.
	maxConns   = 256
	maxStreams = 100
	// maxRequest is the size limit of a request, which may name all of Envoy's resources.
	maxRequest = 64 << 20
	// maxHeader is the size limit of the header of a call, and of the trailer of the
	// control plane.
	maxHeader = 64 << 10
	// requestWindow is the HTTP/2 flow control window for requests, in bytes.
	requestWindow = 1 << 20
	// unused is how long a connection may exist without a stream, handshake the
	// timeout of the HTTP/2 handshake.
	unused    = time.Minute
	handshake = 20 * time.Second
)

// Config configures a [Proxy].
type Config struct {
	// Listener is the Unix socket that Envoy dials; Run closes it.
	Listener net.Listener
	Upstream UpstreamConfig
	// Consumers receive the responses of their types, which are not forwarded to
	// Envoy. Their types are subscribed to in this order.
	Consumers []Consumer
	// Rewriters change the responses of a type, by its URL.
	Rewriters map[string]Rewriter
	// Check refuses responses of types without a rewriter. Optional.
	Check *Check
	// LastGood serves Envoy if the control plane cannot be reached at a cold start.
	// Optional.
	LastGood *LastGood
	// MaxMessage is the size limit of a message in bytes; 0 means 256 MiB.
	MaxMessage int
	Logger     *slog.Logger
	// Registerer registers the metrics. It may be nil.
	Registerer prometheus.Registerer
	// Rejected is called when only one of several Envoys, that with the process id,
	// rejects a response: during a hot restart there are two. Optional.
	Rejected func(pid int, typeURL, reason string)
}

// Consumer handles the responses of a type that is for the agent itself.
type Consumer struct {
	TypeURL string
	// Subscribe subscribes to the type once Envoy has subscribed to listeners.
	// Without it, only unsolicited responses are handled.
	Subscribe bool
	// Handle is called with the messages of a response and, for delta, the names of
	// removed resources. If it returns an error, the response is rejected with its
	// text. It must be fast, because the stream waits for it, and safe for
	// concurrent use. It may retain its arguments.
	Handle func(messages [][]byte, removed []string) error
}

// Rewriter changes a response. It returns the response for Envoy, or nil for none, and
// the fault to report to the control plane, or "". After a fault it is called again with
// the same resources, until there is no fault or a newer response replaces them. It must
// return early if ctx is done. Only responses of the same type and stream wait for it.
type Rewriter func(ctx context.Context, response []byte, delta bool) (out []byte, wrong string)

// Proxy relays ADS streams.
type Proxy struct {
	listener   net.Listener
	upstream   *upstream
	consumers  []Consumer
	rewriters  map[string]Rewriter
	check      *Check
	lastGood   *LastGood
	maxMessage int
	firstAgain time.Duration // delay of the first attempt to rewrite again
	log        *slog.Logger
	metrics    *metrics
	state      state

	mu sync.Mutex // guards the fields below
	// current has the newest downstream stream of each process. Envoy has one; a
	// second one means that the first is dead, which gRPC has not noticed yet.
	// During a hot restart there are two Envoys.
	current map[int]*stream
	// warm are the processes that have accepted listeners of the control plane,
	// which are the last type that a starting Envoy receives.
	warm map[int]bool
	// firsts has the state of the first configuration, by process and type.
	firsts map[int]map[string]*first
	// health is the last health report, or nil.
	health *health

	// keyReports limits the reports of unknown keys: any client can cause them.
	keyReports *rate.Limiter

	records  records
	rejected func(pid int, typeURL, reason string)
	joined   atomic.Int32
}

var errReplaced = errors.New("a newer stream replaced this stream")

// New returns a proxy. It starts nothing; see Run.
func New(cfg Config) (*Proxy, error) {
	if cfg.Listener == nil {
		return nil, errors.New("xds proxy needs a listener")
	}
	if _, _, err := net.SplitHostPort(cfg.Upstream.Address); err != nil {
		return nil, fmt.Errorf("control plane address %q is not host:port: %w", cfg.Upstream.Address, err)
	}
	if err := checkOwn(cfg); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Rejected == nil {
		cfg.Rejected = func(int, string, string) {}
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = defaultMaxMessage
	}
	cfg.Upstream = cfg.Upstream.withDefaults()
	m := newMetrics(cfg.Registerer)
	p := &Proxy{
		listener:   connlimit.Listen(peerListener{cfg.Listener}, connlimit.Config{Total: maxConns, Evict: true, Unused: unused}),
		upstream:   newUpstream(cfg, m),
		consumers:  cfg.Consumers,
		rewriters:  cfg.Rewriters,
		check:      cfg.Check,
		lastGood:   cfg.LastGood,
		maxMessage: cfg.MaxMessage,
		firstAgain: firstAgain,
		log:        cfg.Logger,
		metrics:    m,
		current:    map[int]*stream{},
		warm:       map[int]bool{},
		firsts:     map[int]map[string]*first{},
		rejected:   cfg.Rejected,
		keyReports: rate.NewLimiter(rate.Every(betweenKeyReports), 1),
	}
	p.records.unknownKey = p.reportUnknownKey
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(p.lastResponse())
	}
	return p, nil
}

// checkOwn returns an error for contradictory consumers and rewriters.
func checkOwn(cfg Config) error {
	seen := map[string]bool{healthType: true, listenerType: true}
	for _, c := range cfg.Consumers {
		if seen[c.TypeURL] || c.TypeURL == "" || c.Handle == nil {
			return fmt.Errorf("consumer of %q: it must be the only one of a type that is not the relay's own, with a function", c.TypeURL)
		}
		seen[c.TypeURL] = true
	}
	for typeURL, rewrite := range cfg.Rewriters {
		if seen[typeURL] || rewrite == nil {
			return fmt.Errorf("rewriter of %q: the type must have no consumer, and the rewriter a function", typeURL)
		}
	}
	return nil
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
	alive := p.upstream.cfg.KeepaliveTime
	server := connlimit.NewGRPCServer(insecure.NewCredentials(), connlimit.GRPC{
		HeaderBytes: maxHeader, MessageBytes: min(p.maxMessage, maxRequest), Streams: maxStreams, Window: requestWindow,
		Handshake: handshake, Keepalive: alive, Answer: p.upstream.cfg.KeepaliveTimeout, PingEvery: 15 * time.Second,
	}, grpc.ForceServerCodecV2(codec{}), grpc.MaxSendMsgSize(p.maxMessage))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: logService, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: methodLogs, Handler: p.records.handle, ClientStreams: true}},
	}, nil)
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
		// Serve returns ErrServerStopped if it was stopped before it started.
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

// handler returns the handler that relays a downstream stream until either side ends.
func (p *Proxy) handler(method string) grpc.StreamHandler {
	return func(_ any, down grpc.ServerStream) error {
		connlimit.UseOf(down.Context())
		ctx, cancel := context.WithCancelCause(down.Context())
		defer cancel(nil)
		s := newStream(p, down, method, cancel)
		p.enter(s)
		defer p.leave(s)
		if p.cold(s.pid) {
			return p.ended(down, s.serveCold(ctx))
		}
		return p.ended(down, s.serve(ctx))
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
	for _, f := range p.firsts[s.pid] {
		f.nonce = "" // it belongs to a stream that has ended
	}
}

// leave removes a stream, unless another one has replaced it.
func (p *Proxy) leave(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current[s.pid] == s {
		delete(p.current, s.pid)
	}
}

// reached records whether a stream is joined to the control plane.
func (p *Proxy) reached(s *stream, has bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.joined = has
}

// rejects records whether a stream's Envoy rejects the last response of a type, and
// reports whether it is the only one of several Envoys that does.
func (p *Proxy) rejects(s *stream, typeURL string, does bool) (alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !does {
		if delete(s.rejected, typeURL); typeURL == listenerType {
			p.warmed(s.pid)
		}
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

// ended accounts for the end of a downstream stream and returns the status
// that Envoy sees.
func (p *Proxy) ended(down grpc.ServerStream, err error) error {
	switch {
	case errors.Is(err, errReplaced):
		p.log.Warn("ended an older stream because envoy opened a new one")
		p.metrics.envoyEnds.WithLabelValues(endType(true)).Inc()
		return status.Error(codes.Aborted, errReplaced.Error())
	case down.Context().Err() != nil, err == nil:
		p.metrics.envoyEnds.WithLabelValues(endType(true)).Inc()
		return nil
	case errors.Is(err, errBack):
		p.metrics.envoyEnds.WithLabelValues(endType(true)).Inc()
		return status.Error(codes.Unavailable, errBack.Error())
	}
	p.metrics.envoyEnds.WithLabelValues(endType(false)).Inc()
	return status.Errorf(codes.Unavailable, "stream to the control plane ended: %v", err)
}
