// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/quarantine"
)

// acknowledgement records the responses of one type and their answers. It is the only
// such record: subscriptions, the distribution and debug answers read it. The stream's
// loop writes it under the lock of its acknowledgements and reads it without the lock;
// others read it under the lock.
type acknowledgement struct {
	typeURL string
	// sent, accepted and rejected are the numbers of the last such responses; 0 means
	// none.
	sent, accepted, rejected uint64
	reason                   string // of the last rejection
	// resumed is true if the proxy reconnected with everything that is current.
	resumed bool
	// since is when the last of these happened, or when the type was requested.
	since time.Time
	// sequence is that of the snapshot of the last response, and before that of the
	// snapshot up to which the proxy had everything before it.
	sequence, before uint64
	// rejection is set from a rejection until the next acceptance.
	rejection *Rejection
}

// waiting reports whether the last response is unanswered.
func (a *acknowledgement) waiting() bool {
	return a.sent != 0 && a.sent != a.accepted && a.sent != a.rejected
}

// failing reports whether the last response was rejected.
func (a *acknowledgement) failing() bool { return a.sent != 0 && a.sent == a.rejected }

// nonce returns the nonce of the last response, or "" before the first.
func (a *acknowledgement) nonce() string {
	if a.sent == 0 {
		return ""
	}
	return nonceOf(a.sent)
}

// nonceOf returns the nonce of a response by its number.
func nonceOf(number uint64) string { return strconv.FormatUint(number, 36) }

// acknowledgements are the records of all types of a stream.
type acknowledgements struct {
	mu sync.Mutex // guards the fields below, and the records
	// types are the records of the newest subscription of each type.
	types []*acknowledgement
	// follows is true once the proxy requested a type of configTypes.
	follows bool
	// settled is the sequence of the newest snapshot of which nothing is unanswered.
	settled uint64
	// gives are the sets of the last round; nil before the first.
	gives atomic.Pointer[quarantine.Sets]
}

// track adds the record of a new subscription.
func (s *acknowledgements) track(a *acknowledgement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.since.IsZero() {
		a.since = time.Now()
	}
	s.types = append(slices.DeleteFunc(s.types, func(old *acknowledgement) bool { return old.typeURL == a.typeURL }), a)
	s.follows = s.follows || slices.Contains(configTypes, a.typeURL)
}

// sent records that a response went out.
func (s *acknowledgements) sent(a *acknowledgement, number, sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.sent, a.sequence, a.since = number, sequence, time.Now()
	if a.rejection == nil {
		a.before = s.settled
	}
}

// resumed records that the proxy reconnected with the current version of a type, so
// that nothing is sent.
func (s *acknowledgements) resumed(a *acknowledgement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.sent == 0 && !a.resumed {
		a.resumed, a.since = true, time.Now()
	}
}

// answered records the answer to the last response; an empty reason is an acceptance.
// Names are the resources that were rejected, if that is known.
func (s *acknowledgements) answered(a *acknowledgement, reason string, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.since, a.reason = time.Now(), clipped(reason)
	if reason == "" {
		a.accepted, a.rejected, a.rejection = a.sent, 0, nil
		return
	}
	a.rejected = a.sent
	a.rejection = &Rejection{Type: shortType(a.typeURL), After: a.before, UpTo: a.sequence, Reason: a.reason, Names: names}
}

// settle records that all responses of a snapshot are answered, and reports whether
// that is new.
func (s *acknowledgements) settle(sequence uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew := s.settled != sequence
	s.settled = sequence
	return isNew
}

// of returns a copy of the record of a type; zero if the proxy never requested it.
func (s *acknowledgements) of(typeURL string) acknowledgement {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.types {
		if a.typeURL == typeURL {
			return *a
		}
	}
	return acknowledgement{}
}

// standing returns how far the proxy is. It reports false if the proxy follows no
// snapshots.
func (s *acknowledgements) standing() (p ProxyStanding, follows bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Settled = s.settled
	for _, typeURL := range configTypes {
		for _, a := range s.types {
			if a.typeURL == typeURL && a.rejection != nil {
				p.Rejections = append(p.Rejections, *a.rejection)
			}
		}
	}
	return p, s.follows
}
