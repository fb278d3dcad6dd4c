// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

// The delays before a partially used response is rewritten again.
const (
	firstAgain    = 15 * time.Second
	maxAgain      = 5 * time.Minute
	againGrowth   = 2
	againVariance = 0.2
)

// incomplete contains the resources of a type that could not be used, as the control
// plane sent them. They are rewritten again from time to time, because the control plane
// does not send them again. The goroutine that rewrites the type owns it.
type incomplete struct {
	delta bool
	r     response
	// frame is the newest response of the state of the world, or nil if nothing is
	// incomplete.
	frame []byte
	// head and items are a delta response: all fields but the resources, and the
	// resources of all responses that no later one has replaced.
	head  []byte
	items []deltaItem
	// sent is the last version that Envoy received.
	sent   []byte
	delays *backoff.ExponentialBackOff
	timer  *time.Timer // nil if nothing is incomplete
}

type deltaItem struct {
	name string
	raw  []byte // the field of the response
}

func newIncomplete(delta bool, first time.Duration) *incomplete {
	return &incomplete{delta: delta, delays: backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first), backoff.WithMaxInterval(maxAgain), backoff.WithMultiplier(againGrowth),
		backoff.WithRandomizationFactor(againVariance), backoff.WithMaxElapsedTime(0),
	)}
}

// due returns a channel for the time of the next attempt, nil if nothing is incomplete.
func (in *incomplete) due() <-chan time.Time {
	if in.timer == nil {
		return nil
	}
	return in.timer.C
}

// stop removes everything.
func (in *incomplete) stop() {
	if in.timer != nil {
		in.timer.Stop()
	}
	in.timer, in.frame, in.head, in.items, in.sent = nil, nil, nil, nil, nil
}

// replace removes the resources that a newer response replaces: all in the state of the
// world, those that it names in delta.
func (in *incomplete) replace(frame []byte) {
	if !in.delta {
		in.stop()
		return
	}
	if len(in.items) == 0 {
		return
	}
	_, items, removed := splitDelta(frame)
	gone := make(map[string]bool, len(items)+len(removed))
	for _, item := range items {
		gone[item.name] = true
	}
	for _, name := range removed {
		gone[name] = true
	}
	in.items = slices.DeleteFunc(in.items, func(item deltaItem) bool { return gone[item.name] })
	if len(in.items) == 0 {
		in.stop()
	}
}

// keep records a response that could not be used completely, and the version that Envoy
// received.
func (in *incomplete) keep(frame []byte, r response, sent []byte) {
	in.r, in.sent = r, sent
	if in.delta {
		head, items, _ := splitDelta(frame)
		if len(items) == 0 {
			return // no resource could be used later
		}
		in.head, in.items = head, append(in.items, items...)
	} else {
		in.frame = frame
	}
	in.delays.Reset()
	in.wait()
}

// wait sets the time of the next attempt.
func (in *incomplete) wait() {
	if in.timer != nil {
		in.timer.Stop()
	}
	in.timer = time.NewTimer(in.delays.NextBackOff())
}

// response returns the response to rewrite again.
func (in *incomplete) response() []byte {
	if !in.delta {
		return in.frame
	}
	b := slices.Clone(in.head)
	for _, item := range in.items {
		b = append(b, item.raw...)
	}
	return b
}

// splitDelta splits a delta response into its resources, the names of removed resources,
// and head, the other fields.
func splitDelta(frame []byte) (head []byte, items []deltaItem, removed []string) {
	wire.CursorOf(frame).Each(func(n protowire.Number, v wire.Cursor) {
		body := v.Bytes(v.Len())
		raw := wire.Append(nil, n, body)
		switch n {
		case wire.ResponseResources:
			item := deltaItem{raw: raw}
			v.Each(func(n protowire.Number, v wire.Cursor) {
				if n == wire.ResourceName {
					item.name, _ = text(v)
				}
			})
			items = append(items, item)
		case wire.ResponseRemoved:
			removed = append(removed, string(body))
		case wire.ResponseRemovedNames:
			wire.CursorOf(body).Each(func(n protowire.Number, v wire.Cursor) {
				if n == wire.RemovedName {
					name, _ := text(v)
					removed = append(removed, name)
				}
			})
		default:
			head = append(head, raw...)
		}
	})
	return head, items, removed
}

// rewriteAgain rewrites the incomplete resources again, and sends the result to Envoy if
// it differs. A newer response of the type interrupts it.
func (s *stream) rewriteAgain(ctx context.Context, rw *rewriting, in *incomplete) error {
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	if !rw.interruptible(cancel) {
		in.wait() // a newer response has arrived
		return nil
	}
	out, wrong := rw.fn(attempt, in.response(), s.delta)
	rw.interruptible(nil)
	if attempt.Err() != nil {
		in.wait()
		return ctx.Err()
	}
	if out != nil && !bytes.Equal(out, in.sent) {
		in.sent = out
		rw.expect(in.r.nonce, wrong)
		if err := s.forward(frameOf(out)); err != nil {
			return err
		}
	}
	if wrong != "" {
		in.wait()
		return nil
	}
	s.proxy.log.Info("a part of the control plane's response that was unusable before is now in use", "type_url", in.r.typeURL)
	in.stop()
	return nil
}

// interruptible sets the function that newer responses of the type call; it may be nil.
// It returns false if there is a newer response already.
func (rw *rewriting) interruptible(cancel context.CancelFunc) bool {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	rw.cancel = cancel
	return cancel == nil || len(rw.queue) == 0
}

// interrupt ends a running attempt.
func (rw *rewriting) interrupt() {
	rw.mu.Lock()
	defer rw.mu.Unlock()
	if rw.cancel != nil {
		rw.cancel()
	}
}
