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
	// hedgeAfter is how long to wait for a server before the next one, or the same one again, is
	// queried as well. Datagrams may be lost, and resolvers give up after five seconds.
	hedgeAfter = time.Second
	// moreAttempts is the number of attempts in addition to one per server.
	moreAttempts = 2
)

var errNoServers = errors.New("no upstream server is known")

// attempt is the result of querying one server once.
type attempt struct {
	msg []byte
	err error
}

// askUpstream queries the servers until one answers, in order or all at once. If a server refuses
// to answer or is unreachable, the next one is queried immediately. If none answers, askUpstream
// returns a refusal, if there is one.
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
	// Events: an attempt has ended, it is time for another one, or time is up.
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

// sentIDs are the unanswered requests to upstream. If such a request arrives here, it was sent to
// this server itself.
type sentIDs struct {
	mu  sync.Mutex // guards ids
	ids map[sentID]int
}

type sentID struct {
	name  string
	qtype uint16
	id    uint16
}

// add registers a request and returns a function that removes it.
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
