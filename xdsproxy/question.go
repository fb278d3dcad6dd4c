// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

const (
	// maxQuestions is how many questions of different types a stream has open.
	maxQuestions = 32
	// abandonAfter is when an answer is not expected any more. Until then no
	// other question of its type is asked: an answer of the state of the world
	// does not say whose it is.
	abandonAfter = 30 * time.Second
)

var (
	errNoUpstream = errors.New("no stream to the control plane is open; Envoy's configuration stays as it is, and the agent dials again")
	errTooMany    = errors.New("too many questions are open, ask again in a moment")
)

// questions are what a stream has asked the control plane for others. One is
// open for each type; the same question of several is asked once.
type questions struct {
	mu     sync.Mutex // guards what follows
	open   map[string]*question
	closed bool
}

type question struct {
	key     string // type and names
	message []byte
	waiting int
	asked   time.Time
	// done is closed when the answer has come, or when the stream has ended
	// and answer is nil.
	done   chan struct{}
	answer []byte
}

func newQuestions() *questions { return &questions{open: map[string]*question{}} }

// ask puts a question to the control plane over a stream that is joined, and
// gives its answer, a DiscoveryResponse.
func (p *Proxy) ask(ctx context.Context, typeURL string, names []string) ([]byte, error) {
	s := p.live()
	if s == nil {
		return nil, errNoUpstream
	}
	key := typeURL + "\x00" + strings.Join(names, "\x00")
	for {
		q, mine, err := s.questions.enter(typeURL, key, s.ask(typeURL, names), s.outbox)
		if err != nil {
			return nil, err
		}
		answer, err := s.questions.wait(ctx, q, mine)
		if mine || err != nil {
			return answer, err
		}
	}
}

// live is a stream that is joined to the control plane, nil if there is none.
func (p *Proxy) live() *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.current {
		if s.joined {
			return s
		}
	}
	return nil
}

// enter asks, or returns the question that is open for the type: mine if it is the
// same.
func (qs *questions) enter(typeURL, key string, message []byte, out *outbox) (q *question, mine bool, err error) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if qs.closed {
		return nil, false, errNoUpstream
	}
	now := time.Now()
	q = qs.open[typeURL]
	switch {
	case q != nil && q.key != key && now.Sub(q.asked) < abandonAfter:
		return q, false, nil
	case q != nil && q.key == key && q.waiting > 0:
		q.waiting++
		return q, true, nil
	case q == nil || q.key != key:
		if q == nil && len(qs.open) >= maxQuestions && !qs.forget(now) {
			return nil, false, errTooMany
		}
		q = &question{key: key, message: message, done: make(chan struct{})}
		qs.open[typeURL] = q
	}
	q.waiting, q.asked = 1, now
	out.put(typeURL, q.message)
	return q, true, nil
}

// forget makes room by forgetting a question that nobody waits for.
func (qs *questions) forget(now time.Time) bool {
	for typeURL, q := range qs.open {
		if q.waiting == 0 && now.Sub(q.asked) >= abandonAfter {
			delete(qs.open, typeURL)
			return true
		}
	}
	return false
}

// wait waits for the answer, or until a question of somebody else is out of the
// way.
func (qs *questions) wait(ctx context.Context, q *question, mine bool) ([]byte, error) {
	if mine {
		defer func() {
			qs.mu.Lock()
			q.waiting--
			qs.mu.Unlock()
		}()
	}
	qs.mu.Lock()
	left := time.Until(q.asked.Add(abandonAfter))
	qs.mu.Unlock()
	abandoned := time.NewTimer(left)
	defer abandoned.Stop()
	select {
	case <-q.done:
		if mine && q.answer == nil {
			return nil, errNoUpstream
		}
		return q.answer, nil
	case <-abandoned.C:
		if mine {
			return nil, context.DeadlineExceeded
		}
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answered hands an answer to those who wait for it; false if nobody asked.
func (qs *questions) answered(typeURL string, answer func() []byte) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.open[typeURL]
	if q == nil {
		return false
	}
	delete(qs.open, typeURL)
	q.answer = answer()
	close(q.done)
	return true
}

// close ends all questions without an answer.
func (qs *questions) close() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.closed = true
	for _, q := range qs.open {
		close(q.done)
	}
	clear(qs.open)
}
