// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// streamSets are what the destinations of connections to an outbound listener depend on: the listener
// and those that accept its connections if it does not, before and after a change, and the sets of the
// clusters.
type streamSets struct {
	listeners [2][len(catching) + 1]*xds.Resource
	sets      routeSets
}

// catching begins the names of the listeners that accept connections for which there is no other one.
var catching = [...]string{"virtualOutbound", "0.0.0.0_", "[::]_"}

// atListeners tries connections to the outbound listeners of a proxy that change, if requests on them
// are not read.
func (f *flips) atListeners(p affected) error {
	names := differing(p, xds.TypeListener)
	f.untried.listeners += max(0, len(names)-maxFlipStreams)
	for _, name := range names[:min(len(names), maxFlipStreams)] {
		key := streamSets{sets: routeKey(p)}
		outbound, size := false, 0
		for side, set := range []*xds.Set{p.before[xds.TypeListener], p.after[xds.TypeListener]} {
			r := set.Get(name)
			key.listeners[side] = catchersOf(set, name, r)
			if r != nil {
				outbound, size = outbound || p.st.Proxy.Role == node.Router || !f.accepts(r), size+len(r.Any)
			}
		}
		if !outbound {
			continue
		}
		list, known := f.connections[key]
		if !known {
			if !f.read(size) {
				return nil
			}
			c := f.newClientFlips(p)
			if err := c.connect(p.st.Proxy, name, key.listeners); err != nil {
				return err
			}
			list = c.results()
			f.connections[key] = list
		}
		f.addAll(list, p)
	}
	return nil
}

// catchersOf returns a listener, and those that accept its connections if it does not.
func catchersOf(set *xds.Set, name string, r *xds.Resource) (out [len(catching) + 1]*xds.Resource) {
	out[0] = r
	for i, other := range catching {
		if strings.HasSuffix(other, "_") {
			other += name[strings.LastIndexByte(name, '_')+1:]
		}
		if other != name {
			out[i+1] = set.Get(other)
		}
	}
	return out
}

// connect tries connections to each filter chain of a listener that forwards them unread.
func (c *clientFlips) connect(p *model.Proxy, name string, resources [2][len(catching) + 1]*xds.Resource) error {
	var envoys [2]*decision.Envoy
	var requests []decision.Request
	size := 0
	for side, list := range resources {
		cfg := decision.Config{Minor: p.EnvoyMinor(), Gateway: p.Role == node.Router}
		for i, r := range list {
			if r == nil {
				continue
			}
			l := &listenerv3.Listener{}
			if err := r.UnmarshalTo(l); err != nil {
				return err
			}
			cfg.Listeners, size = append(cfg.Listeners, l), size+len(r.Any)
			if i > 0 {
				continue
			}
			for _, r := range connectionsTo(l) {
				if !slices.ContainsFunc(requests, func(o decision.Request) bool {
					return o.Server == r.Server && o.Port == r.Port && o.SNI == r.SNI
				}) {
					requests = append(requests, r)
				}
			}
		}
		envoys[side] = decision.New(cfg)
	}
	c.untried.requests += max(0, len(requests)-maxProbes)
	for _, r := range requests[:min(len(requests), maxProbes)] {
		if !c.request(size) {
			continue
		}
		var routed [2]decision.Routed
		for side, envoy := range envoys {
			var err error
			if routed[side], err = envoy.Route(r, 0, nil); err != nil {
				return err
			}
		}
		host := c.nameOf(r.Server)
		if r.Server.IsUnspecified() {
			host = cmp.Or(r.SNI, p.ID)
		}
		x := report.Flipped{Routed: name, Host: host, Port: r.Port, SNI: r.SNI}
		if err := c.compare(&probe{Request: r}, x, routed); err != nil {
			return err
		}
	}
	return nil
}

// connectionsTo returns a connection to each filter chain of a listener that does not read requests,
// and for chains of TLS one with each name.
func connectionsTo(l *listenerv3.Listener) (out []decision.Request) {
	at := l.GetAddress().GetSocketAddress()
	address, err := netip.ParseAddr(at.GetAddress())
	if err != nil {
		return nil // a socket of Unix
	}
	for _, chain := range slices.Concat(l.GetFilterChains(), []*listenerv3.FilterChain{l.GetDefaultFilterChain()}) {
		if chain == nil || slices.ContainsFunc(chain.GetFilters(), func(f *listenerv3.Filter) bool {
			return strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), ".HttpConnectionManager")
		}) {
			continue
		}
		m := chain.GetFilterChainMatch()
		r := decision.Request{Server: address, Port: at.GetPortValue()}
		if port := m.GetDestinationPort(); port != nil {
			r.Port = port.GetValue()
		}
		for _, prefix := range m.GetPrefixRanges()[:min(1, len(m.GetPrefixRanges()))] {
			if to, err := netip.ParseAddr(prefix.GetAddressPrefix()); err == nil {
				r.Server = to
			}
		}
		for _, name := range m.GetServerNames() {
			r.SNI = concrete(name)
			out = append(out, r)
		}
		if len(m.GetServerNames()) == 0 {
			out = append(out, r)
		}
	}
	return out
}

// nameOf returns the service at an address, or the address.
func (f *flips) nameOf(a netip.Addr) string {
	if f.services == nil {
		f.services = map[string]string{}
		for _, svc := range f.mesh.Services.Sorted {
			lists := [][]string{svc.Addresses, svc.Allocated}
			for _, list := range svc.ClusterAddresses {
				lists = append(lists, list)
			}
			for _, address := range slices.Concat(lists...) {
				if f.services[address] == "" {
					f.services[address] = svc.Hostname
				}
			}
		}
	}
	if name := f.services[a.String()]; name != "" {
		return name
	}
	return a.String()
}

// accepts reports whether a listener accepts connections as a server.
func (f *flips) accepts(r *xds.Resource) bool {
	accepts, known := f.inbound[r]
	if !known {
		accepts = directionOf(r.Any) == corev3.TrafficDirection_INBOUND
		f.inbound[r] = accepts
	}
	return accepts
}

// directionOf returns the direction of a listener in an Any. It does not decode the rest, because a proxy
// may have thousands of listeners.
func directionOf(packed []byte) (out corev3.TrafficDirection) {
	const valueOfAny, direction = 2, 16
	fields(packed, func(n protowire.Number, message []byte, _ uint64) {
		if n == valueOfAny {
			fields(message, func(n protowire.Number, _ []byte, value uint64) {
				if n == direction {
					out = corev3.TrafficDirection(value)
				}
			})
		}
	})
	return out
}

// fields calls found for the fields of a message that are bytes or integers.
func fields(message []byte, found func(n protowire.Number, value []byte, integer uint64)) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		var value []byte
		var integer uint64
		switch kind {
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			integer, size = protowire.ConsumeVarint(message)
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 {
			return
		}
		found(n, value, integer)
		message = message[size:]
	}
}
