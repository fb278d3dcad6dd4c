// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
)

// Proxies whose connection ended are remembered for goneFor, and at most maxGone of them.
const (
	goneFor = time.Hour
	maxGone = 1000
)

// gone are the proxies whose connection has ended, by id. A proxy that does not come back may
// still serve requests, with the configuration that it had.
type gone struct {
	mu   sync.Mutex // guards byID
	byID map[string]lost
}

// lost is a proxy whose connection has ended.
type lost struct {
	debug.Gone
	caller *authn.Caller // nil on a port without authentication
}

// add adds the proxy of a stream that has ended. If there are too many, it removes the oldest.
func (g *gone) add(st *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byID == nil {
		g.byID = map[string]lost{}
	}
	g.byID[st.proxy.ID] = lost{debug.Gone{Proxy: st.proxy, Identity: st.identity(), Since: time.Now()}, st.caller}
	if len(g.byID) <= maxGone {
		return
	}
	oldest := lost{Gone: debug.Gone{Since: time.Now()}}
	for _, p := range g.byID {
		if !p.Since.After(oldest.Since) {
			oldest = p
		}
	}
	delete(g.byID, oldest.Proxy.ID)
}

// remove removes a proxy that has connected.
func (g *gone) remove(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, id)
}

// list returns the proxies that may connect and are not connected, and whose workload exists as far as is
// known.
func (g *gone) list(s *Server, now time.Time) (out []debug.Gone) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, p := range g.byID {
		switch {
		case now.Sub(p.Since) > goneFor:
			delete(g.byID, id)
		case s.presence.Registered && s.presence.Labels(p.Proxy) == nil: // the workload is gone, too
			delete(g.byID, id)
		case s.denied != nil && p.caller != nil && s.denied(p.caller) != nil: // the server ended the connection
			delete(g.byID, id)
		default:
			out = append(out, p.Gone)
		}
	}
	return out
}

// Gone implements [debug.Source].
func (s source) Gone() []debug.Gone {
	connected := map[string]bool{}
	for _, st := range s.Streams() {
		connected[st.Proxy.ID] = true
	}
	var out []debug.Gone
	for _, p := range s.server.gone.list(s.server, time.Now()) {
		if !connected[p.Proxy.ID] { // its next stream may have begun before the last one ended
			out = append(out, p)
		}
	}
	return out
}
