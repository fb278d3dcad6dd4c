// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errMoved ends the stream of a proxy that is to come to another replica.
var errMoved = status.Error(codes.Unavailable, "another replica of this control plane has fewer proxies: connect again")

// leaveTime is how long a proxy that is to go has to answer what it was sent. Its
// stream ends after it, whatever the proxy still asks for or does not answer.
const leaveTime = 30 * time.Second

// Load is how many proxies this server serves.
func (s *Server) Load() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ := s.load()
	return n
}

// load returns how many proxies there are, and how many of them are to go and have
// not gone yet. The caller holds mu.
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

// Shed has one proxy, whichever, connect again, so that it comes to another
// replica: it is sent the rest of the snapshot that it is getting and no newer one,
// and its stream ends when it has answered that, or after 30 s. It reports false if
// there is none, or if one in twenty is about to go already.
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

// leave returns errMoved if a stream that leaves owes no answer, else the timer after
// which it ends in any case. Overdue is that timer, nil before there is one.
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
