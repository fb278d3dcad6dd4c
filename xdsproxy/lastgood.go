// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// LastGood keeps what Envoy took and answers from it at a cold start.
type LastGood struct {
	// Record begins the recording of a stream.
	Record func(delta bool) Recording
	// Usable returns nil while there is something to serve, else the reason.
	Usable func() error
	// Serve answers one stream until ctx is done. recv gives Envoy's requests
	// and an error at the end of the stream, send takes responses, which are
	// not rewritten.
	Serve func(ctx context.Context, delta bool, recv func() ([]byte, error), send func([]byte) error) error
	// Lacks returns what Envoy needs beside its configuration and does not have,
	// for the log; empty: nothing. Optional.
	Lacks func() string
}

// Recording receives what passes on one stream, before it is passed on, as the
// control plane and Envoy sent it. What the agent takes and says itself is
// among it. The methods must be quick, and take calls from several goroutines,
// after Close too. To keep the buffers they take a reference.
type Recording interface {
	Response(frame mem.BufferSlice)
	Request(frame mem.BufferSlice)
	Close()
}

const (
	// An Envoy that has nothing waits coldFailing for a control plane that
	// cannot be reached, time for a second attempt, and coldSilent for one of
	// which nothing is known. Envoy moves to one that comes later.
	coldFailing = 150 * time.Millisecond
	coldSilent  = time.Second
	coldLook    = 50 * time.Millisecond
	// coldMute is how long it waits for one that takes the stream and says
	// nothing, where something was kept.
	coldMute = 2 * time.Second
	// maxWarm is how many processes are known to have had configuration.
	maxWarm = 256
)

var (
	errBack = errors.New("the control plane is reachable again: renew the subscriptions")
	errMute = fmt.Errorf("the control plane accepted the stream but has not responded within %s", coldMute)
)

// cold tells whether a process has had no configuration of the control plane
// and what was last good would help it.
func (p *Proxy) cold(pid int) bool {
	if p.lastGood == nil {
		return false
	}
	p.mu.Lock()
	warm := p.warm[pid]
	p.mu.Unlock()
	return !warm
}

// warmed notes that a process has configuration of the control plane. The caller
// holds mu.
func (p *Proxy) warmed(pid int) {
	if len(p.warm) > maxWarm {
		clear(p.warm)
	}
	p.warm[pid] = true
}

// opened is a stream to the control plane.
type opened struct {
	stream grpc.ClientStream
	conn   *grpc.ClientConn
	err    error
}

func (o opened) close() {
	if o.conn != nil {
		_ = o.conn.Close() // nothing is left to lose
	}
}

// serveCold joins the stream to the control plane if that can be reached soon,
// and else serves what was last good until it can.
func (s *stream) serveCold(ctx context.Context) error {
	p := s.proxy
	openCtx, cancel := context.WithCancel(ctx)
	result := make(chan opened, 1) // it is read on every way out
	go func() {
		var o opened
		o.stream, o.conn, o.err = p.upstream.open(openCtx, s.method)
		result <- o
	}()
	o, ok := opened{}, false
	// A control plane that failed before has to prove itself first.
	if attempts, _ := p.upstream.failure(); attempts == 0 {
		o, ok = s.awaitUpstream(ctx, result)
	}
	if !ok {
		if err := p.lastGood.Usable(); err != nil {
			p.log.Warn("there is nothing to serve until the control plane can be reached", "reason", err.Error())
			o, ok = <-result, true
		}
	}
	if ok {
		defer cancel()
		defer o.close()
		if o.err != nil {
			return o.err
		}
		ctx, stop := s.unlessMute(ctx)
		defer stop()
		return s.join(ctx, o.stream, true)
	}
	return s.serveLastGood(ctx, result, cancel)
}

// unlessMute ends a stream that the control plane took and says nothing on, where
// something was kept: on the next one Envoy is served that. One that is slow is
// waited for once it has shown that it answers.
func (s *stream) unlessMute(ctx context.Context) (context.Context, func()) {
	p := s.proxy
	if p.upstream.answers() {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(coldMute, func() {
		p.mu.Lock()
		joined := s.joined
		p.mu.Unlock()
		if joined || ctx.Err() != nil || p.lastGood.Usable() != nil {
			return
		}
		p.upstream.failed(errMute)
		end(errMute)
	})
	return ctx, func() {
		timer.Stop()
		end(nil)
	}
}

// awaitUpstream returns the stream that opens in time; false if none does.
func (s *stream) awaitUpstream(ctx context.Context, result <-chan opened) (opened, bool) {
	began := time.Now()
	look := time.NewTicker(coldLook)
	defer look.Stop()
	for {
		select {
		case o := <-result:
			return o, true
		case <-ctx.Done():
			return <-result, true // it ends, too
		case now := <-look.C:
			waited := now.Sub(began)
			attempts, _ := s.proxy.upstream.failure()
			if waited >= coldSilent || waited >= coldFailing && attempts > 0 {
				return opened{}, false
			}
		}
	}
}

// serveLastGood serves what was last good until the control plane takes a
// stream.
func (s *stream) serveLastGood(ctx context.Context, result <-chan opened, cancel context.CancelFunc) error {
	p := s.proxy
	p.metrics.lastGood.Inc()
	p.state.serving(1)
	p.log.Warn("the control plane cannot be reached; envoy starts with the last good configuration", "address", p.upstream.cfg.Address, "stream", s.method)
	if p.lastGood.Lacks != nil {
		if lack := p.lastGood.Lacks(); lack != "" {
			p.log.Warn("envoy starts with the last good configuration, which is incomplete", "reason", lack)
		}
	}
	served := sync.OnceFunc(func() {
		p.metrics.lastGood.Dec()
		p.state.serving(-1)
	})
	defer served()
	clear(s.rewrites)
	stored := newStored()
	ctx, stop := context.WithCancelCause(ctx)
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	defer stop(nil)
	g.Go(func() { // ends what is served once the control plane takes a stream
		o := <-result
		defer func() { o.close() }()
		for !s.proved(ctx, &o, stored) {
			if ctx.Err() != nil {
				return
			}
			o.stream, o.conn, o.err = p.upstream.open(ctx, s.method)
		}
		p.upstream.succeeded()
		p.log.Info("the control plane can be reached again; envoy renews its subscriptions", "address", p.upstream.cfg.Address)
		stop(errBack)
	})
	g.Go(func() {
		err := p.lastGood.Serve(ctx, s.delta, stored.recv(ctx), stored.send(ctx))
		if err != nil && ctx.Err() == nil {
			// On a stream that ends at once nobody would reach the control plane.
			p.log.Warn("the last good configuration cannot be served; envoy waits for the control plane", "err", err)
			served()
			<-ctx.Done()
		}
		stored.end(err)
	})
	return s.join(ctx, stored, false)
}

// proved tells whether the control plane takes the stream that was opened: only
// then Envoy leaves what it has. It closes what did not prove itself.
func (s *stream) proved(ctx context.Context, o *opened, stored *stored) bool {
	if o.err != nil {
		return false
	}
	select {
	case <-stored.asked:
	case <-ctx.Done():
		return false
	}
	err := o.stream.SendMsg(frameOf(stored.first))
	if err == nil || errors.Is(err, io.EOF) {
		var f frame
		if err = o.stream.RecvMsg(&f); err == nil {
			f.free()
			return true
		}
	}
	o.close()
	if ctx.Err() == nil {
		s.proxy.upstream.failed(err)
	}
	return false
}

// stored is what was last good, as the source of a stream.
type stored struct {
	requests  chan []byte
	responses chan []byte
	once      sync.Once
	first     []byte        // Envoy's first request
	asked     chan struct{} // closed once there is one
	err       error         // why it ended
	ended     chan struct{} // closed once it has
}

func newStored() *stored {
	return &stored{requests: make(chan []byte), responses: make(chan []byte), asked: make(chan struct{}), ended: make(chan struct{})}
}

func (st *stored) end(err error) {
	if err == nil {
		err = io.EOF
	}
	st.err = err
	close(st.ended)
}

// recv and send are the end that LastGood has.
func (st *stored) recv(ctx context.Context) func() ([]byte, error) {
	return func() ([]byte, error) {
		select {
		case b := <-st.requests:
			return b, nil
		case <-ctx.Done():
			return nil, io.EOF
		}
	}
}

func (st *stored) send(ctx context.Context) func([]byte) error {
	return func(b []byte) error {
		select {
		case st.responses <- b:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Header implements [source].
func (st *stored) Header() (metadata.MD, error) { return metadata.MD{}, nil }

// SendMsg implements [source].
func (st *stored) SendMsg(m any) error {
	b := m.(*frame).data.Materialize()
	st.once.Do(func() {
		st.first = b
		close(st.asked)
	})
	select {
	case st.requests <- b:
		return nil
	case <-st.ended:
		return io.EOF
	}
}

// RecvMsg implements [source].
func (st *stored) RecvMsg(m any) error {
	select {
	case b := <-st.responses:
		*m.(*frame) = *frameOf(b)
		return nil
	case <-st.ended:
		return st.err
	}
}
