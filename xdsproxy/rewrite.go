// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

const (
	// maxRewrites is how many responses of a type may wait for its rewriter before
	// the stream blocks.
	maxRewrites = 16
	// maxWrongs is the limit of faulty responses of a type that wait for Envoy's
	// answer.
	maxWrongs = 64
)

// rewriting is the state of rewriting one type of one stream.
type rewriting struct {
	fn    Rewriter
	queue chan received
	start sync.Once

	mu sync.Mutex // guards the fields below
	// last is Envoy's last state-of-the-world request for the type: a rejection must
	// repeat its names. accepted is the last version that Envoy accepted.
	last     []byte
	accepted string
	// wrong has the faults to report when Envoy answers a nonce.
	wrong map[string]string
	// cancel ends a running attempt to rewrite again; nil if there is none.
	cancel context.CancelFunc
}

type received struct {
	frame
	response
}

func newRewriting(fn Rewriter) *rewriting {
	return &rewriting{fn: fn, queue: make(chan received, maxRewrites), wrong: map[string]string{}}
}

// rewrite passes a response to the rewriter of its type, which frees it.
func (s *stream) rewrite(ctx context.Context, rw *rewriting, r received) {
	rw.start.Do(func() { go s.rewriteAll(ctx, rw) })
	select {
	case rw.queue <- r:
		rw.interrupt()
	case <-ctx.Done():
		r.free()
	}
}

// rewriteAll rewrites one response after the other until ctx ends, and retries unusable
// resources.
func (s *stream) rewriteAll(ctx context.Context, rw *rewriting) {
	in := newIncomplete(s.delta, s.proxy.firstAgain)
	defer in.stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case r := <-rw.queue:
			err = s.rewriteOne(ctx, rw, in, r)
		case <-in.due():
			err = s.rewriteAgain(ctx, rw, in)
		}
		if err != nil {
			return // Envoy or the stream has ended
		}
	}
}

// rewriteOne rewrites a response and frees it.
func (s *stream) rewriteOne(ctx context.Context, rw *rewriting, in *incomplete, r received) error {
	b := r.data.Materialize()
	r.free()
	in.replace(b)
	out, wrong := rw.fn(ctx, b, s.delta)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if wrong != "" {
		s.proxy.log.Warn("a part of the control plane's response cannot be used", "type_url", r.typeURL, "reason", wrong)
		s.proxy.state.settled(r.typeURL, wrong)
		in.keep(b, r.response, out)
	}
	if out == nil {
		rejection := rw.reject(s.variant, r.response, wrong)
		s.record(func(to Recording) { to.Request(frameOf(rejection).data) })
		s.outbox.put(r.typeURL, rejection)
		return nil
	}
	rw.expect(r.nonce, wrong)
	return s.forward(frameOf(out))
}

// expect records the fault of a response until Envoy answers it.
func (rw *rewriting) expect(nonce, wrong string) {
	if wrong == "" {
		return
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if len(rw.wrong) >= maxWrongs {
		clear(rw.wrong) // Envoy does not answer these any more
	}
	rw.wrong[nonce] = wrong
}

// reject returns the rejection of a response that Envoy does not receive.
func (rw *rewriting) reject(w variant, r response, wrong string) []byte {
	if wrong == "" {
		wrong = "none of its resources can be used"
	}
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if w.delta || rw.last == nil {
		return w.answer(r, rw.accepted, codeRewritten, wrong)
	}
	// If a field occurs twice, the last one is used.
	b := append(rw.last[:len(rw.last):len(rw.last)], rw.version()...)
	return w.settle(b, r.nonce, codeRewritten, wrong)
}

// note records the parts of Envoy's request that a rejection needs, and adds the fault of
// the response before rewriting to Envoy's acknowledgement. It returns the fault.
func (rw *rewriting) note(f *frame, r request, w variant) (wrong string) {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	wrong = rw.wrong[r.nonce]
	if r.nonce != "" {
		delete(rw.wrong, r.nonce)
	}
	if !w.delta && r.rejected == "" {
		rw.last = f.data.Materialize()
	}
	if r.rejected == "" && r.version != "" && wrong == "" {
		rw.accepted = r.version
	}
	if wrong == "" || r.rejected != "" {
		return ""
	}
	var added []byte
	if !w.delta {
		added = rw.version()
	}
	f.data = append(f.data[:len(f.data):len(f.data)], mem.SliceBuffer(append(added, w.errorDetail(codeRewritten, wrong)...)))
	return wrong
}

// version returns the field of the last accepted version, which may be empty.
func (rw *rewriting) version() []byte {
	return wire.Append(nil, wire.RequestVersion, rw.accepted)
}
