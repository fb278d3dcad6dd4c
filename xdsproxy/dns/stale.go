// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lru"
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

	mu      sync.Mutex // guards the fields below
	answers *lru.Map[staleKey, staleAnswer]
	bytes   int
}

type staleAnswer struct {
	raw  []byte // the message
	kept time.Time
}

func (a staleAnswer) size(key staleKey) int { return len(a.raw) + len(key.name) + staleOverhead }

func newStaleAnswers(maxAge time.Duration) *staleAnswers {
	return &staleAnswers{maxAge: max(maxAge, 0), answers: lru.New[staleKey, staleAnswer](maxStaleBytes / staleOverhead)}
}

// put stores an answer. The caller must not change the bytes afterwards.
func (s *staleAnswers) put(key staleKey, raw []byte, now time.Time) {
	if s.maxAge == 0 || len(raw) > maxStaleAnswer {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
	a := staleAnswer{raw: raw, kept: now}
	s.bytes += a.size(key)
	for oldest := range s.answers.Oldest() {
		if s.bytes <= maxStaleBytes {
			break
		}
		s.remove(oldest)
	}
	s.answers.Put(key, a)
}

// get returns the last answer, or nil if there is none or it is too old.
func (s *staleAnswers) get(key staleKey, now time.Time) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.answers.Get(key)
	if ok && now.Sub(a.kept) > s.maxAge {
		s.remove(key)
		return nil
	}
	return a.raw
}

// remove removes an answer, if there is one. The caller holds mu.
func (s *staleAnswers) remove(key staleKey) {
	if a, ok := s.answers.Get(key); ok {
		s.answers.Delete(key)
		s.bytes -= a.size(key)
	}
}
