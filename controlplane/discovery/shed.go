// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

// Load is how many proxies this server serves and is to keep.
func (s *Server) Load() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for st := range s.streams {
		if st.objects == nil && !st.leaving.Load() {
			n++
		}
	}
	return n
}

// Shed has one proxy, whichever, connect again, so that it comes to another
// replica: its stream ends when it has answered all that it was sent. It reports
// false if there is none.
func (s *Server) Shed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams { // the order of a map is as good as any
		if st.objects == nil && st.leaving.CompareAndSwap(false, true) {
			st.notify()
			return true
		}
	}
	return false
}

// Moved reports whether a stream ended with this error because of [Server.Shed].
func Moved(err error) bool { return err == errMoved }
