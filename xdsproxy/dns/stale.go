// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"container/list"
	"sync"
	"time"
)

// Limits of the stored answers of upstream.
const (
	maxStaleBytes  = 1 << 20 // of all answers and their names
	maxStaleAnswer = maxUDP  // larger ones are not stored
	// staleTTL is the time, in seconds, for which clients may cache such an answer (RFC 8767).
	staleTTL = 30
	// staleOverhead is the approximate memory overhead of an answer, in bytes.
	staleOverhead = 200
)

// staleKey is the question of a stored answer.
type staleKey struct {
	name              string
	qtype             uint16
	dnssec, unchecked bool
}

// staleAnswers stores the last answer of upstream to each question and evicts the least recently
// used one first.
type staleAnswers struct {
	maxAge time.Duration // 0 disables storage

	mu    sync.Mutex // guards the fields below
	byKey map[staleKey]*list.Element
	order *list.List // of *staleAnswer, the most recently used in front
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

// put stores an answer. The caller must not change the bytes afterwards.
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

// get returns the last answer, or nil if there is none or it is too old.
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
