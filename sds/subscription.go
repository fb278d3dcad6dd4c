// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// notServed is the version of a name that is not served, once the client knows.
const notServed = "-"

// subscription are the names of one stream and the versions that it was sent. The
// goroutine of the stream owns it.
type subscription struct {
	sent map[string]string // version that was sent, by name; "" if none yet
}

func newSubscription() *subscription { return &subscription{sent: map[string]string{}} }

// replace replaces the subscription by names. It keeps the versions that were sent for
// names that remain.
func (s *subscription) replace(names []string) {
	sent := make(map[string]string, len(names))
	for _, name := range names {
		sent[name] = s.sent[name]
	}
	s.sent = sent
}

// check returns an error for too many names, and for names that are too long.
func (s *subscription) check() error {
	if len(s.sent) > maxNames {
		return status.Errorf(codes.ResourceExhausted, "%d secrets are requested on one stream: at most %d are allowed", len(s.sent), maxNames)
	}
	for name, version := range s.sent {
		if n := max(len(name), len(version)); n > maxName {
			return status.Errorf(codes.InvalidArgument, "a name or version of a secret has %d bytes: at most %d are allowed", n, maxName)
		}
	}
	return nil
}

// add subscribes to names. Each of them is due, even if it was sent before, unless the
// client claims to have its version.
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

// due returns, sorted by name, the secrets that the client lacks and its names that are
// not served, and records them as sent. look returns the current secret of a name, or nil
// while there is none yet.
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
