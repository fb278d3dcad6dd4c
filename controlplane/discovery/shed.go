// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errMoved ends the stream of a proxy that is to move to another replica.
var errMoved = status.Error(codes.Unavailable, "another replica of this control plane has fewer proxies: reconnect")

// leaveTime is how long a proxy that is to move has to answer its last responses. Its
// stream ends after it in any case.
const leaveTime = 30 * time.Second

// Load returns the number of connected proxies.
func (s *Server) Load() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ := s.load()
	return n
}

// load returns the number of connected proxies, and how many of them are to move. The
// caller must hold mu.
func (s *Server) load() (all, leaving int) {
	for st := range s.streams {
		if st.objects != nil {
			continue
		}
		if all++; st.leaving.Load() {
			leaving++
		}
	}
	return all, leaving
}

// Shed makes an arbitrary proxy reconnect, so that it moves to another replica. The
// proxy receives the rest of its current snapshot and no newer one, and its stream
// ends once it has answered, or after 30 s. Shed returns false if there is no proxy,
// or if a twentieth of the proxies are moving already.
func (s *Server) Shed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all, leaving := s.load(); leaving >= max(1, all/20) {
		return false
	}
	for st := range s.streams { // the order of a map is as good as any
		if st.objects == nil && st.leaving.CompareAndSwap(false, true) {
			st.notify()
			return true
		}
	}
	return false
}

// leave returns errMoved if all responses of a stream whose proxy is to move are
// answered, else the timer after which it ends in any case. overdue is that timer, nil
// if there is none yet.
func (s *stream) leave(overdue <-chan time.Time) (<-chan time.Time, error) {
	if !s.waiting() && !s.given.Open {
		return nil, errMoved
	}
	if overdue == nil {
		overdue = time.After(leaveTime)
	}
	return overdue, nil
}

// Moved reports whether a stream ended with this error because of [Server.Shed].
func Moved(err error) bool { return err == errMoved }
