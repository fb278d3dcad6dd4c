// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// notServed stands for the version of a name that is not served, once the
// client has received.
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
	sent := make(map[string]string, len(names))
	for _, name := range names {
		sent[name] = s.sent[name]
	}
	s.sent = sent
}

// check refuses more names than a stream may have, and names that are too long.
func (s *subscription) check() error {
	if len(s.sent) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "%d secrets are asked for on one stream: at most %d are served", len(s.sent), maxNames)
	}
	for name, version := range s.sent {
		if n := max(len(name), len(version)); n > maxName {
			return status.Errorf(codes.InvalidArgument, "a name or version of a secret has %d bytes: at most %d are served", n, maxName)
		}
	}
	return nil
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
