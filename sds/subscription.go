// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"maps"
	"slices"
)

// notServed stands for the version of a name that is not served, once the
// client has been told.
const notServed = "-"

// subscription is what one stream asked for and what it was sent. It belongs to
// the goroutine of the stream.
type subscription struct {
	sent map[string]string // name -> version that was sent; empty: nothing yet
}

func newSubscription() *subscription { return &subscription{sent: map[string]string{}} }

// replace makes names the whole subscription. What was sent before is not due
// again for names that stay.
func (s *subscription) replace(names []string) {
	for name := range s.sent {
		if !slices.Contains(names, name) {
			delete(s.sent, name)
		}
	}
	for _, name := range names {
		if _, ok := s.sent[name]; !ok {
			s.sent[name] = ""
		}
	}
}

// add subscribes to names; each of them is due, even if it was sent before,
// unless the client says that it has the version already.
func (s *subscription) add(names []string, known map[string]string) {
	for _, name := range names {
		s.sent[name] = known[name]
	}
}

func (s *subscription) remove(names []string) {
	for _, name := range names {
		delete(s.sent, name)
	}
}

// due returns, sorted by name, what the client lacks and which of its names are
// not served. They count as sent from then on. look returns what is in force
// under a name, nil as long as it is awaited.
func (s *subscription) due(look func(name string) (m *material, served bool)) (items []item, unknown []string) {
	for _, name := range slices.Sorted(maps.Keys(s.sent)) {
		m, served := look(name)
		switch {
		case !served:
			if s.sent[name] != notServed {
				s.sent[name] = notServed
				unknown = append(unknown, name)
			}
		case m == nil:
		case s.sent[name] != m.version:
			s.sent[name] = m.version
			items = append(items, item{name, m})
		}
	}
	return items, unknown
}
