// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConns is how many connections there are at once, so that whoever opens many
// takes neither the agent's memory nor the files that it needs for others.
const maxConns = 1024

// crowd bounds the connections of a server. When there are too many, the one
// that has waited the longest for a request goes: the kubelet's, which is new and
// asks at once, stays.
type crowd struct {
	mu      sync.Mutex // guards what follows
	open    int
	waiting map[net.Conn]time.Time // those without a request, since when
}

// note is the server's ConnState.
func (c *crowd) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open++
		c.waiting[conn] = time.Now()
		if c.open > maxConns {
			_ = c.oldest().Close() // its end is noted like any other
		}
	case http.StateIdle:
		c.waiting[conn] = time.Now()
	case http.StateActive:
		delete(c.waiting, conn)
	case http.StateClosed, http.StateHijacked:
		delete(c.waiting, conn)
		c.open--
	}
}

// oldest takes the connection that has waited the longest from those that wait:
// there is one. It goes only once.
func (c *crowd) oldest() (longest net.Conn) {
	for conn, since := range c.waiting {
		if longest == nil || since.Before(c.waiting[longest]) {
			longest = conn
		}
	}
	delete(c.waiting, longest)
	return longest
}
