// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// source is the source of a stream's responses: the control plane, or the last good
// configuration.
type source interface {
	Header() (metadata.MD, error)
	SendMsg(m any) error
	RecvMsg(m any) error
}

// stream is a downstream stream with its source.
type stream struct {
	variant
	proxy  *Proxy
	down   grpc.ServerStream
	end    context.CancelCauseFunc
	pid    int // of Envoy, 0 if unknown
	method string

	// up is the source; live is true if that is the control plane. Both are set
	// before the goroutines that read them start.
	up   source
	live bool
	// recording records Envoy's configuration from the control plane. It may be nil.
	recording Recording

	// toUp and toDown serialize sending in each direction, as gRPC requires.
	toUp, toDown sync.Mutex

	outbox    *outbox
	questions *questions
	// rewrites are the types with a rewriter; empty for the last good
	// configuration. The map does not change once the stream is joined.
	rewrites map[string]*rewriting
	// accepted are the last accepted versions of the agent's own types. The
	// goroutine of responses owns it.
	accepted map[string]string
	// dropped are the reasons that have been logged.
	dropped sync.Map

	// The proxy's mutex guards the fields below. rejected are the types whose last response Envoy
	// has rejected; subscribed is true once Envoy has subscribed to listeners, joined while the
	// stream is joined to the control plane.
	rejected   map[string]bool
	subscribed bool
	joined     bool
}

func newStream(p *Proxy, down grpc.ServerStream, method string, end context.CancelCauseFunc) *stream {
	s := &stream{
		variant: variant{delta: method == methodDelta}, proxy: p, down: down, end: end, pid: peerID(down.Context()), method: method,
		outbox: newOutbox(), questions: newQuestions(),
		rewrites: map[string]*rewriting{}, accepted: map[string]string{},
	}
	for typeURL, rewrite := range p.rewriters {
		s.rewrites[typeURL] = newRewriting(rewrite)
	}
	return s
}

// serve joins the stream to the control plane, and waits as long as necessary for it.
func (s *stream) serve(ctx context.Context) error {
	up, conn, err := s.proxy.upstream.open(ctx, s.method)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is left to lose
	return s.join(ctx, up, true)
}

// join forwards messages in both directions until either side ends.
func (s *stream) join(ctx context.Context, up source, live bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.up, s.live = up, live
	if live && s.proxy.lastGood != nil {
		s.recording = s.proxy.lastGood.Record(s.delta)
		defer s.recording.Close()
	}
	defer s.questions.close()
	done := make(chan error, 3)
	go func() { done <- s.requests(ctx) }()
	go func() { done <- s.responses(ctx) }()
	go func() { done <- s.say(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// requests forwards Envoy's requests to the control plane. It returns nil when Envoy has
// ended the stream.
func (s *stream) requests(ctx context.Context) error {
	for {
		var f frame
		if err := s.down.RecvMsg(&f); err != nil {
			// The downstream context has the reason; upstream ends with
			// its connection.
			return nil //nolint:nilerr // see above
		}
		r, pass := s.look(&f)
		if !pass {
			f.free()
			continue
		}
		if err := s.send(ctx, &f); err != nil {
			return err
		}
		if r.typeURL == listenerType {
			s.subscribeOwn()
		}
	}
}

// send sends a frame upstream and frees it. If the upstream stream has ended, it waits
// for the end of ctx: responses receives the reason.
func (s *stream) send(ctx context.Context, f *frame) error {
	s.toUp.Lock()
	err := s.up.SendMsg(f)
	s.toUp.Unlock()
	f.free()
	if errors.Is(err, io.EOF) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err == nil && s.live {
		s.proxy.metrics.requests.Inc()
	}
	return err
}

// look records the state of Envoy in a request, and reports whether to forward it.
func (s *stream) look(f *frame) (r request, pass bool) {
	r = readRequest(f.data, s.delta)
	if s.owns(r.typeURL) {
		// The agent has subscribed to it itself: the answers could not be
		// distinguished.
		s.drop("own_request", r.typeURL)
		return r, false
	}
	s.record(func(to Recording) { to.Request(f.data) })
	s.proxy.asked(s, f.data, r)
	if s.live && (r.rejected != "" || r.nonce != "") {
		s.settled(r)
	}
	if rw := s.rewrites[r.typeURL]; rw != nil {
		if wrong := rw.note(f, r, s.variant); wrong != "" {
			s.proxy.state.settled(r.typeURL, wrong) // Envoy accepted the rest of it
		}
	}
	return r, true
}

func (s *stream) record(what func(Recording)) {
	if s.recording != nil {
		what(s.recording)
	}
}

// settled records that Envoy accepted or rejected a response.
func (s *stream) settled(r request) {
	p := s.proxy
	if p.rejects(s, r.typeURL, r.rejected != "") {
		p.rejected(s.pid, r.typeURL, r.rejected)
	}
	p.state.settled(r.typeURL, r.rejected)
	if r.rejected != "" {
		p.metrics.rejected.WithLabelValues(p.state.label(r.typeURL)).Inc()
		p.log.Warn("envoy rejected configuration; a last good version, if there is one, stays in force", "type_url", r.typeURL, "reason", r.rejected)
	}
}

// responses forwards the control plane's responses to Envoy. It returns the reason why
// the upstream stream ended.
func (s *stream) responses(ctx context.Context) error {
	// The header arrives with the first response, or before if the control plane
	// accepts the stream and has nothing to send. A refused stream has none.
	header, err := s.up.Header()
	accepted := err == nil && header != nil
	if accepted && s.live {
		defer s.proxy.join(s)()
	}
	for {
		var f frame
		if err := s.up.RecvMsg(&f); err != nil {
			return s.upstreamEnded(ctx, err, !accepted)
		}
		if err := s.receive(ctx, &f); err != nil {
			return nil //nolint:nilerr // Envoy has ended it; its context has the reason
		}
	}
}

// join records that a stream is joined to the control plane, until end is called.
func (p *Proxy) join(s *stream) (end func()) {
	p.upstream.succeeded()
	p.metrics.connected.Inc()
	p.state.connected(int(p.joined.Add(1)))
	p.reached(s, true)
	p.log.Info("joined envoy to the control plane", "stream", s.method, "address", p.upstream.cfg.Address)
	return func() {
		p.reached(s, false)
		p.metrics.connected.Dec()
		p.state.connected(int(p.joined.Add(-1)))
	}
}

// receive passes a response to its receiver, and frees it.
func (s *stream) receive(ctx context.Context, f *frame) error {
	p := s.proxy
	r, ok := readResponse(f.data)
	if s.live {
		p.metrics.responses.Inc()
		p.state.received(r)
	}
	switch rw := s.rewrites[r.typeURL]; {
	case !ok:
		s.drop("malformed", r.typeURL)
	case s.owns(r.typeURL):
		s.consume(f, r)
	case strings.HasPrefix(r.typeURL, debugPrefix):
		if !s.questions.answered(r.typeURL, func() []byte { return s.answerOf(f) }) {
			s.drop("unasked_debug", r.typeURL)
		}
	case !strings.HasPrefix(r.typeURL, envoyPrefix):
		s.drop("unknown_type", r.typeURL)
	default:
		s.record(func(to Recording) { to.Response(f.data) })
		if rw != nil {
			s.rewrite(ctx, rw, received{*f, r})
			return nil // it frees the frame
		}
		if err := s.proxy.check.of(f.data); err != nil {
			s.refuse(r, err)
			break
		}
		return s.forward(f)
	}
	f.free()
	return nil
}

// answerOf returns the answer to a question as a response of the state of the world.
func (s *stream) answerOf(f *frame) []byte {
	if s.delta {
		return stateOfTheWorld(f)
	}
	return f.data.Materialize()
}

// forward sends a frame to Envoy and frees it.
func (s *stream) forward(f *frame) error {
	s.proxy.sending(s, f.data)
	s.toDown.Lock()
	err := s.down.SendMsg(f)
	s.toDown.Unlock()
	f.free()
	return err
}

// drop counts a dropped message. It logs each reason once per stream, so that a flood of
// messages does not flood the log.
func (s *stream) drop(reason, typeURL string) {
	s.proxy.metrics.dropped.WithLabelValues(reason).Inc()
	if _, known := s.dropped.LoadOrStore(reason, nil); !known {
		s.proxy.log.Warn("dropped a message without a receiver; further ones on this stream are only counted", "reason", reason, "type_url", typeURL)
	}
}

// upstreamEnded records the end of the upstream stream. If ctx is done, the relay has
// ended it, which is not a failure of the control plane.
func (s *stream) upstreamEnded(ctx context.Context, err error, refused bool) error {
	if !s.live {
		return err
	}
	ended := ctx.Err() != nil
	s.proxy.metrics.upstreamEnds.WithLabelValues(endType(ended || errors.Is(err, io.EOF))).Inc()
	if ended {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("closed by the control plane")
	}
	s.proxy.state.failed(err)
	if refused {
		s.proxy.upstream.failed(err)
	} else {
		// A warning follows if reconnecting does not succeed at once.
		s.proxy.log.Info("the control plane's stream ended; envoy keeps its configuration", "err", err)
	}
	return err
}
