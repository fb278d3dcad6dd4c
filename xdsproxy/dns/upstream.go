// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	defaultTimeout = 5 * time.Second
	// hedgeAfter is how long a server is waited for before the next one, or the
	// same one again, is asked too. Datagrams are lost, and resolvers give up
	// after five seconds.
	hedgeAfter = time.Second
	// moreAttempts are made beside one for each server.
	moreAttempts = 2
)

var errNoServers = errors.New("no upstream server is known")

// attempt is the outcome of asking one server once.
type attempt struct {
	msg []byte
	err error
}

// askUpstream asks the servers until one answers: in their order, or all at
// once. One that says that it cannot, or cannot be reached, is followed by the
// next at once. When none answers, what one has said instead is the outcome.
func (s *Server) askUpstream(ctx context.Context, a *ask) ([]byte, error) {
	servers := s.upstream.Load().servers
	if len(servers) == 0 {
		return nil, errNoServers
	}
	timeout := s.cfg.Upstream.Timeout
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all := len(servers) + moreAttempts
	done := make(chan attempt, all)
	begun, ended := 0, 0
	begin := func() {
		server := servers[begun%len(servers)]
		begun++
		s.running.Go(func() {
			msg, err := s.exchange(ctx, server, a)
			done <- attempt{msg, err}
		})
	}
	begin()
	for s.cfg.Upstream.Parallel && begun < len(servers) {
		begin()
	}
	hedge := time.NewTicker(min(hedgeAfter, timeout/4))
	defer hedge.Stop()
	last := attempt{err: fmt.Errorf("none of %d servers answered within %s", len(servers), timeout)}
	// An attempt has ended, it is time for another one, or there is none left.
	for {
		select {
		case got := <-done:
			ended++
			if got.err == nil && isAnswer(got.msg) {
				return got.msg, nil
			}
			if got.err == nil || (last.msg == nil && ctx.Err() == nil) {
				last = got
			}
			if begun < len(servers) {
				begin()
			} else if ended == begun {
				return last.msg, last.err
			}
		case <-hedge.C:
			if begun < all {
				begin()
			}
		case <-ctx.Done():
			return last.msg, last.err
		}
	}
}

// sentIDs are the requests that upstream has not answered yet. When one of
// them arrives here, it was sent to ourselves.
type sentIDs struct {
	mu  sync.Mutex // guards ids
	ids map[sentID]int
}

type sentID struct {
	name  string
	qtype uint16
	id    uint16
}

// add notes a request; the function that it gives forgets it.
func (s *sentIDs) add(a *ask, id uint16) func() {
	key := sentID{a.name, a.qtype, id}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ids[key]--; s.ids[key] == 0 {
			delete(s.ids, key)
		}
	}
}

func (s *sentIDs) has(a *ask, id uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[sentID{a.name, a.qtype, id}] > 0
}
