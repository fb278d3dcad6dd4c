// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"sync"
	"time"
)

// progress is how far a proxy is, for users who ask on other streams. It is
// written by the stream's loop.
type progress struct {
	mu    sync.Mutex     // guards types
	types []typeProgress // in the order of order; nil before the first response
}

// typeProgress are the numbers of responses: the last one that was sent, the
// last that was taken, and the last that was rejected. 0 is none.
type typeProgress struct {
	sent, acked, rejected uint64
	reason                string // of the last rejection
	// resumed is true if the proxy came back with what is current.
	resumed bool
	// since is when the last of these happened.
	since time.Time
}

// at returns the entry of a type, nil for types that are not served. The caller
// holds mu.
func (p *progress) at(typeURL string) *typeProgress {
	i := slices.Index(order, typeURL)
	if i < 0 {
		return nil
	}
	if p.types == nil {
		p.types = make([]typeProgress, len(order))
	}
	return &p.types[i]
}

func (p *progress) sent(typeURL string, nonce uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.at(typeURL); t != nil {
		t.sent, t.since = nonce, time.Now()
	}
}

// resumed notes that a proxy came back with all it should have of a type, so that
// nothing is sent.
func (p *progress) resumed(typeURL string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.at(typeURL); t != nil && t.sent == 0 && !t.resumed {
		t.resumed, t.since = true, time.Now()
	}
}

// answered notes the answer to the last response; an empty reason is that it
// was taken.
func (p *progress) answered(typeURL, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.at(typeURL)
	switch {
	case t == nil:
	case reason == "":
		t.acked, t.rejected, t.reason, t.since = t.sent, 0, "", time.Now()
	default:
		t.rejected, t.reason, t.since = t.sent, clipped(reason), time.Now()
	}
}

// of returns what is known of a type.
func (p *progress) of(typeURL string) typeProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.at(typeURL); t != nil {
		return *t
	}
	return typeProgress{}
}

// failing reports whether the last response was rejected.
func (t typeProgress) failing() bool { return t.sent != 0 && t.sent == t.rejected }
