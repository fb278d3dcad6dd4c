// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxFirstNames is how many names of a rejected response are kept. After a
	// larger one only the acceptance of a later response counts.
	maxFirstNames = 1000
	// firstAnswer is how long an answer to the first configuration of a type is
	// waited for. Envoy does not answer a response that it asked for no longer.
	firstAnswer = 10 * time.Second
)

// needed are the types that Envoy serves by, in the order of the protocol.
var needed = [...]struct{ typeURL, what string }{
	{envoyPrefix + "config.cluster.v3.Cluster", "clusters (CDS)"},
	{envoyPrefix + "config.endpoint.v3.ClusterLoadAssignment", "endpoints (EDS)"},
	{listenerType, "listeners (LDS)"},
	{envoyPrefix + "config.route.v3.RouteConfiguration", "routes (RDS)"},
	{envoyPrefix + "config.route.v3.VirtualHost", "virtual hosts (VHDS)"},
	{envoyPrefix + "config.core.v3.TypedExtensionConfig", "extensions (ECDS)"},
}

// first is how one Envoy took the first configuration of one type.
type first struct {
	// accepted is true once Envoy took a response with resources. Nothing else
	// counts from then on: what it rejects later leaves it with what it had.
	accepted bool
	// nonce is that of the last response until Envoy answers it, sent is when
	// that was; names are those of its resources.
	nonce string
	sent  time.Time
	names map[string]bool
	empty bool
	// rejected is Envoy's reason. refused are the names that it still asks for
	// of those that came with what it rejected; nil if they are not known.
	rejected string
	refused  map[string]bool
}

// Configured returns nil unless the Envoy with a process id has rejected all that
// it was sent of a type that it needs, or has not answered yet. The error says
// which type and why. It ends when Envoy accepts resources of the type, or no
// longer asks for those that it rejected.
func (p *Proxy) Configured(pid int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	types := p.firsts[pid]
	if types == nil {
		types = p.firsts[0] // the process of a stream is not known everywhere
	}
	for _, n := range needed {
		switch f := types[n.typeURL]; {
		case f == nil || f.accepted:
		case f.rejected != "":
			return fmt.Errorf("envoy has rejected its first %s and has none in force: %s; the control plane's status names the resource", n.what, clipReason(f.rejected))
		case f.nonce != "" && time.Since(f.sent) < firstAnswer:
			return fmt.Errorf("envoy has not answered yet to its first %s", n.what)
		}
	}
	return nil
}

// clipReason puts Envoy's words on one short line.
func clipReason(reason string) string {
	const most = 300
	reason = strings.Join(strings.Fields(reason), " ")
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "") + "..."
	}
	return reason
}

// first returns the entry of a type for the stream's Envoy; nil for a type that
// does not count. The caller holds mu.
func (p *Proxy) first(pid int, typeURL string) *first {
	known := false
	for _, n := range needed {
		known = known || n.typeURL == typeURL
	}
	if !known {
		return nil
	}
	types := p.firsts[pid]
	if types == nil {
		if len(p.firsts) > maxWarm {
			clear(p.firsts)
		}
		types = map[string]*first{}
		p.firsts[pid] = types
	}
	f := types[typeURL]
	if f == nil {
		f = &first{}
		types[typeURL] = f
	}
	return f
}

// sending notes a response that goes to Envoy.
func (p *Proxy) sending(s *stream, data mem.BufferSlice) {
	r, ok := readResponse(data)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.first(s.pid, r.typeURL)
	if f == nil || f.accepted {
		return
	}
	f.nonce, f.sent, f.names, f.empty = r.nonce, time.Now(), map[string]bool{}, true
	newCursor(data).each(func(n protowire.Number, v cursor) {
		if n != responseResources {
			return
		}
		f.empty = false
		if s.delta && len(f.names) <= maxFirstNames {
			addNames(f.names, v, resourceName)
		}
	})
}

// asked notes what Envoy answers, and what it no longer asks for.
func (p *Proxy) asked(s *stream, data mem.BufferSlice, r request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.firsts[s.pid][r.typeURL]
	if f == nil || f.accepted {
		return
	}
	answered := r.nonce != "" && r.nonce == f.nonce
	switch {
	case r.rejected != "":
		if s.live { // what was last good may hold what Envoy is meant to reject
			f.rejected, f.refused = r.rejected, f.names
		}
	case r.nonce != "" && !(answered && f.empty):
		*f = first{accepted: true}
		return
	}
	if answered {
		f.nonce, f.names = "", nil
	}
	if f.rejected != "" && s.wantsNone(data, f) {
		f.rejected, f.refused = "", nil
	}
}

// wantsNone tells whether Envoy, after a request, asks for none of the resources
// that were refused.
func (s *stream) wantsNone(data mem.BufferSlice, f *first) bool {
	number := sotwNames
	if s.delta {
		number = deltaUnsubscribe
	}
	names := map[string]bool{}
	addNames(names, newCursor(data), number)
	if !s.delta {
		// Each request holds all names. One without them asks for all resources.
		before := len(f.refused)
		if len(names) > 0 || before > 0 {
			f.refused = names
		}
		return before > 0 && len(names) == 0
	}
	if len(f.refused) == 0 || len(f.refused) > maxFirstNames {
		return false
	}
	for name := range names {
		delete(f.refused, name)
	}
	return len(f.refused) == 0
}

// addNames adds the texts of a field of a message, up to maxFirstNames and one.
func addNames(names map[string]bool, message cursor, number protowire.Number) {
	message.each(func(n protowire.Number, v cursor) {
		if n == number && len(names) <= maxFirstNames {
			name, _ := v.text()
			names[name] = true
		}
	})
}
