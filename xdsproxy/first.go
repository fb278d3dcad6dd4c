// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wire"
)

const (
	// maxFirstNames is how many names of a rejected response are kept. After a
	// larger one only the acceptance of a later response counts.
	maxFirstNames = 1000
	// firstAnswer is how long an answer to the first configuration of a type is
	// waited for. Envoy does not answer a response that it asked for no longer.
	firstAnswer = 10 * time.Second
)

// extensionType is that of extensions, which Envoy loads by ECDS.
const extensionType = envoyPrefix + "config.core.v3.TypedExtensionConfig"

// neededType is a type that Envoy serves by.
type neededType struct {
	typeURL, what string
	// all is true if Envoy asks for all resources of the type. One that is removed
	// does not exist any more, while one that Envoy asks for by name is missing.
	all bool
}

// needed are the types that Envoy serves by, in the order of the protocol.
var needed = [...]neededType{
	{envoyPrefix + "config.cluster.v3.Cluster", "clusters (CDS)", true},
	{envoyPrefix + "config.endpoint.v3.ClusterLoadAssignment", "endpoints (EDS)", false},
	{listenerType, "listeners (LDS)", true},
	{envoyPrefix + "config.route.v3.RouteConfiguration", "routes (RDS)", false},
	{envoyPrefix + "config.route.v3.VirtualHost", "virtual hosts (VHDS)", true},
	{extensionType, "extensions (ECDS)", false},
}

// neededOf returns the entry of a type; nil for a type that does not count.
func neededOf(typeURL string) *neededType {
	for i := range needed {
		if needed[i].typeURL == typeURL {
			return &needed[i]
		}
	}
	return nil
}

// first is how one Envoy took the first configuration of one type.
type first struct {
	// accepted is true once Envoy took a response with resources. Nothing else
	// counts from then on: what it rejects later leaves it with what it had.
	accepted bool
	// nonce is that of the last response until Envoy answers it, sent is when
	// that was; names are those of its resources, removed those that it removes.
	nonce   string
	sent    time.Time
	names   map[string]bool
	removed []string
	empty   bool
	// rejected is Envoy's reason. refused are the names that it still asks for
	// of those that came with what it rejected; nil if they are not known. stored
	// is true if that was a part of the last good configuration.
	rejected string
	refused  map[string]bool
	stored   bool
}

// Configured returns nil unless the Envoy with a process id has rejected all that
// it was sent of a type that it needs, or has not answered yet. The error says
// which type and why. It ends when Envoy accepts resources of the type or the removal
// of those that it rejected, or when it no longer asks for them.
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
		case f.rejected != "" && f.stored:
			return fmt.Errorf("envoy has rejected its last good %s and has accepted none since: %s; it waits for the control plane", n.what, clipReason(f.rejected))
		case f.rejected != "":
			return fmt.Errorf("envoy has rejected its first %s and has accepted none since: %s; the control plane's status names the resource", n.what, clipReason(f.rejected))
		case f.nonce != "" && time.Since(f.sent) < firstAnswer:
			return fmt.Errorf("envoy has not answered yet to its first %s", n.what)
		}
	}
	return nil
}

// clipReason puts Envoy's words on one short line.
func clipReason(reason string) string {
	const most = 300
	return clip.Text(strings.Join(strings.Fields(reason), " "), most)
}

// first returns the entry of a type for the stream's Envoy; nil for a type that
// does not count. The caller holds mu.
func (p *Proxy) first(pid int, typeURL string) *first {
	if neededOf(typeURL) == nil {
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
	if s.live && f.stored {
		f.rejected, f.refused, f.stored = "", nil, false // the control plane's takes its place
	}
	f.nonce, f.sent, f.names, f.removed, f.empty = r.nonce, time.Now(), map[string]bool{}, nil, true
	wire.NewCursor(data).Each(func(n protowire.Number, v wire.Cursor) {
		switch {
		case n == wire.ResponseResources:
			f.empty = false
			if s.delta && len(f.names) <= maxFirstNames {
				addNames(f.names, v, wire.ResourceName)
			}
		case n == wire.ResponseRemoved && s.delta && len(f.removed) <= maxFirstNames:
			name, _ := text(v)
			f.removed = append(f.removed, name)
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
	// Without delta a request for more names repeats the last nonce. It is no answer,
	// and its version is that of what Envoy accepted last: none.
	accepts := r.rejected == "" && (answered || r.nonce != "" && (s.delta || r.version != ""))
	switch {
	case r.rejected != "":
		// Of the last good configuration, Envoy is meant to reject extensions that
		// are missing.
		if !s.live && r.typeURL == extensionType {
			break
		}
		switch {
		case !answered:
			f.refused = nil
		case f.rejected == "":
			f.refused = f.names
		case f.refused != nil && len(f.refused) <= maxFirstNames:
			maps.Copy(f.refused, f.names)
		}
		f.rejected, f.stored = r.rejected, !s.live
	case accepts && !(answered && f.empty):
		*f = first{accepted: true}
		return
	}
	withdrawn := answered && accepts && neededOf(r.typeURL).all && s.withdrawn(f)
	if answered {
		f.nonce, f.names, f.removed = "", nil, nil
	}
	if f.rejected != "" && (withdrawn || s.wantsNone(data, f)) {
		f.rejected, f.refused, f.stored = "", nil, false
	}
}

// withdrawn reports whether none of the resources that were refused exists after
// the last response, which has no resources and which Envoy accepted. Without delta
// it is the whole state.
func (s *stream) withdrawn(f *first) bool {
	if !s.delta {
		return true
	}
	if len(f.refused) == 0 || len(f.refused) > maxFirstNames {
		return false
	}
	for _, name := range f.removed {
		delete(f.refused, name)
	}
	return len(f.refused) == 0
}

// wantsNone tells whether Envoy, after a request, asks for none of the resources
// that were refused.
func (s *stream) wantsNone(data mem.BufferSlice, f *first) bool {
	number := wire.RequestNames
	if s.delta {
		number = wire.DeltaRequestUnsubscribe
	}
	names := map[string]bool{}
	addNames(names, wire.NewCursor(data), number)
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
func addNames(names map[string]bool, message wire.Cursor, number protowire.Number) {
	message.Each(func(n protowire.Number, v wire.Cursor) {
		if n == number && len(names) <= maxFirstNames {
			name, _ := text(v)
			names[name] = true
		}
	})
}
