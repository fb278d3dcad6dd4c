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
	// maxQuestions is the limit of open questions of different types on a stream.
	maxQuestions = 32
	// abandonAfter is the time after which an answer is not expected any more.
	// Until then no other question of its type is asked: an answer of the state of
	// the world does not identify its question.
	abandonAfter = 30 * time.Second
)

var (
	errNoUpstream = errors.New("no stream to the control plane is open; Envoy's configuration is unchanged, and the agent is reconnecting")
	errTooMany    = errors.New("too many pending queries: retry later")
)

// questions are the open debug questions of a stream, at most one for each type. The
// same question of several callers is asked once.
type questions struct {
	mu     sync.Mutex // guards the fields below
	open   map[string]*question
	closed bool
}

type question struct {
	key     string // type and names
	message []byte
	waiting int
	asked   time.Time
	// done is closed when the answer has arrived, or when the stream has ended; then
	// answer is nil.
	done   chan struct{}
	answer []byte
}

func newQuestions() *questions { return &questions{open: map[string]*question{}} }

// ask sends a question to the control plane on a joined stream, and returns the answer,
// a DiscoveryResponse.
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

// live returns a stream that is joined to the control plane, or nil.
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

// enter asks a question, or returns the open question of the type; mine is true if that
// is the same question.
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

// forget removes an abandoned question, and reports whether there was one.
func (qs *questions) forget(now time.Time) bool {
	for typeURL, q := range qs.open {
		if q.waiting == 0 && now.Sub(q.asked) >= abandonAfter {
			delete(qs.open, typeURL)
			return true
		}
	}
	return false
}

// wait waits for the answer, or until a different question of the type is closed.
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

// answered passes an answer to its waiting callers; it returns false if there are none.
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

// close closes all questions without an answer.
func (qs *questions) close() {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.closed = true
	for _, q := range qs.open {
		close(q.done)
	}
	clear(qs.open)
}
