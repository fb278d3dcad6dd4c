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
	// maxFirstNames is the maximum number of names of a rejected response that are
	// stored. After a larger one only the acceptance of a later response counts.
	maxFirstNames = 1000
	// firstAnswer is how long to wait for the answer to the first configuration of a
	// type. Envoy does not answer if it has unsubscribed meanwhile.
	firstAnswer = 10 * time.Second
)

// extensionType is the type of extensions, which Envoy loads by ECDS.
const extensionType = envoyPrefix + "config.core.v3.TypedExtensionConfig"

// neededType is a type that Envoy needs to serve.
type neededType struct {
	typeURL, what string
	// all is true if Envoy subscribes to all resources of the type. A removed
	// resource then does not exist any more, while one that Envoy subscribes to by
	// name is missing.
	all bool
}

// needed are the types that Envoy needs to serve, in the order of the protocol.
var needed = [...]neededType{
	{envoyPrefix + "config.cluster.v3.Cluster", "clusters (CDS)", true},
	{envoyPrefix + "config.endpoint.v3.ClusterLoadAssignment", "endpoints (EDS)", false},
	{listenerType, "listeners (LDS)", true},
	{envoyPrefix + "config.route.v3.RouteConfiguration", "routes (RDS)", false},
	{envoyPrefix + "config.route.v3.VirtualHost", "virtual hosts (VHDS)", true},
	{extensionType, "extensions (ECDS)", false},
}

// neededOf returns the entry of a type, or nil if Envoy does not need the type.
func neededOf(typeURL string) *neededType {
	for i := range needed {
		if needed[i].typeURL == typeURL {
			return &needed[i]
		}
	}
	return nil
}

// first is the state of the first configuration of one type at one Envoy.
type first struct {
	// accepted is true once Envoy has accepted a response with resources. After
	// that the other fields are unused: Envoy keeps its configuration if it rejects
	// a later response.
	accepted bool
	// nonce is the nonce of the last response until Envoy answers it, and sent its
	// time; names are the names of its resources, removed those of its removals.
	nonce   string
	sent    time.Time
	names   map[string]bool
	removed []string
	empty   bool
	// rejected is Envoy's reason. refused are the names of the rejected response
	// that Envoy still subscribes to; nil if unknown. stored is true if it was
	// part of the last good configuration.
	rejected string
	refused  map[string]bool
	stored   bool
}

// Configured returns an error if the Envoy with a process id has rejected all
// configuration of a type that it needs, or has not answered yet. The error says
// which type and why. It is cleared when Envoy accepts resources of the type or the
// removal of those that it rejected, or unsubscribes from them.
func (p *Proxy) Configured(pid int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	types := p.firsts[pid]
	if types == nil {
		types = p.firsts[0] // some systems do not report the process of a stream
	}
	for _, n := range needed {
		switch f := types[n.typeURL]; {
		case f == nil || f.accepted:
		case f.rejected != "" && f.stored:
			return fmt.Errorf("envoy has rejected its last good %s and has accepted none since: %s; it waits for the control plane", n.what, clipReason(f.rejected))
		case f.rejected != "":
			return fmt.Errorf("envoy has rejected its first %s and has accepted none since: %s; the control plane's status names the resource", n.what, clipReason(f.rejected))
		case f.nonce != "" && time.Since(f.sent) < firstAnswer:
			return fmt.Errorf("envoy has not yet responded to its first %s", n.what)
		}
	}
	return nil
}

// clipReason returns Envoy's message as one short line.
func clipReason(reason string) string {
	const most = 300
	return clip.Text(strings.Join(strings.Fields(reason), " "), most)
}

// first returns the entry of a type for the stream's Envoy, or nil if Envoy does not
// need the type. The caller must hold mu.
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

// sending records a response before it is sent to Envoy.
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
		f.rejected, f.refused, f.stored = "", nil, false // the control plane's configuration replaces it
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

// asked records Envoy's answers, and its unsubscriptions.
func (p *Proxy) asked(s *stream, data mem.BufferSlice, r request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.firsts[s.pid][r.typeURL]
	if f == nil || f.accepted {
		return
	}
	answered := r.nonce != "" && r.nonce == f.nonce
	// Without delta a request for more names repeats the last nonce. It is not an
	// answer if its version, that of the last accepted response, is empty.
	accepts := r.rejected == "" && (answered || r.nonce != "" && (s.delta || r.version != ""))
	switch {
	case r.rejected != "":
		// Envoy is expected to reject missing extensions of the last good
		// configuration.
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

// withdrawn reports whether the refused resources do not exist any more, after Envoy
// accepted the last response, which has no resources. Without delta the response is the
// whole state.
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

// wantsNone reports whether Envoy, after a request, subscribes to none of the refused
// resources.
func (s *stream) wantsNone(data mem.BufferSlice, f *first) bool {
	number := wire.RequestNames
	if s.delta {
		number = wire.DeltaRequestUnsubscribe
	}
	names := map[string]bool{}
	addNames(names, wire.NewCursor(data), number)
	if !s.delta {
		// Each request has all names. A request without names subscribes to everything.
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

// addNames adds the values of a field of a message, until there are maxFirstNames+1.
func addNames(names map[string]bool, message wire.Cursor, number protowire.Number) {
	message.Each(func(n protowire.Number, v wire.Cursor) {
		if n == number && len(names) <= maxFirstNames {
			name, _ := text(v)
			names[name] = true
		}
	})
}
