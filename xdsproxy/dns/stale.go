// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"container/list"
	"sync"
	"time"
)

// Bounds of what is kept of upstream's answers.
const (
	maxStaleBytes  = 1 << 20 // of all answers and their names
	maxStaleAnswer = maxUDP  // larger ones are not kept
	// staleTTL is how long, in seconds, clients may keep such an answer (RFC 8767).
	staleTTL = 30
	// staleOverhead is about what an answer takes beside its bytes.
	staleOverhead = 200
)

// staleKey is what a kept answer answers.
type staleKey struct {
	name              string
	qtype             uint16
	dnssec, unchecked bool
}

// staleAnswers keep the last answer of upstream to each question, the least
// recently used one goes first.
type staleAnswers struct {
	maxAge time.Duration // 0: nothing is kept

	mu    sync.Mutex // guards what follows
	byKey map[staleKey]*list.Element
	order *list.List // of *staleAnswer, the last used one in front
	bytes int
}

type staleAnswer struct {
	key  staleKey
	raw  []byte // the message
	kept time.Time
}

func (a *staleAnswer) size() int { return len(a.raw) + len(a.key.name) + staleOverhead }

func newStaleAnswers(maxAge time.Duration) *staleAnswers {
	return &staleAnswers{maxAge: max(maxAge, 0), byKey: map[staleKey]*list.Element{}, order: list.New()}
}

// put keeps an answer. The bytes must not change any more.
func (s *staleAnswers) put(key staleKey, raw []byte, now time.Time) {
	if s.maxAge == 0 || len(raw) > maxStaleAnswer {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[key]; e != nil {
		s.remove(e)
	}
	a := &staleAnswer{key: key, raw: raw, kept: now}
	s.byKey[key] = s.order.PushFront(a)
	s.bytes += a.size()
	for s.bytes > maxStaleBytes {
		s.remove(s.order.Back())
	}
}

// get returns the last answer, nil when there is none or it is too old.
func (s *staleAnswers) get(key staleKey, now time.Time) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byKey[key]
	if e == nil {
		return nil
	}
	a := e.Value.(*staleAnswer)
	if now.Sub(a.kept) > s.maxAge {
		s.remove(e)
		return nil
	}
	s.order.MoveToFront(e)
	return a.raw
}

func (s *staleAnswers) remove(e *list.Element) {
	a := s.order.Remove(e).(*staleAnswer)
	delete(s.byKey, a.key)
	s.bytes -= a.size()
}
