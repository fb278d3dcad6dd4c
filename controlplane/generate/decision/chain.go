// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package decision

import (
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// connection is what is known of a connection when its filter chain is chosen.
type connection struct {
	server netip.Addr
	port   uint32
	tls    bool
	sni    string
	alpn   []string
}

// choose returns the chain that accepts a connection, or nil. Like Envoy, it compares one attribute
// after the other, and keeps the chains with the most specific value.
func choose(l *listenerv3.Listener, c connection) *listenerv3.FilterChain {
	list := l.GetFilterChains()
	for _, specificity := range []func(*listenerv3.FilterChainMatch) int{c.byPort, c.byAddress, c.byName, c.byTransport, c.byProtocol} {
		var kept []*listenerv3.FilterChain
		best := -1
		for _, chain := range list {
			switch s := specificity(chain.GetFilterChainMatch()); {
			case s < 0 || s < best:
			case s > best:
				kept, best = []*listenerv3.FilterChain{chain}, s
			default:
				kept = append(kept, chain)
			}
		}
		if list = kept; len(list) == 0 {
			return l.GetDefaultFilterChain()
		}
	}
	return list[0]
}

// byPort and the following return how specifically a chain matches: 0 for any value, and a negative
// number if it does not match.
func (c connection) byPort(m *listenerv3.FilterChainMatch) int {
	switch {
	case m.GetDestinationPort() == nil:
		return 0
	case m.GetDestinationPort().GetValue() == c.port:
		return 1
	}
	return -1
}

func (c connection) byAddress(m *listenerv3.FilterChainMatch) int {
	best := -1
	for _, r := range m.GetPrefixRanges() {
		first, err := netip.ParseAddr(r.GetAddressPrefix())
		if err == nil && netip.PrefixFrom(first, int(r.GetPrefixLen().GetValue())).Masked().Contains(c.server) {
			best = max(best, 1+int(r.GetPrefixLen().GetValue()))
		}
	}
	if len(m.GetPrefixRanges()) == 0 {
		return 0
	}
	return best
}

func (c connection) byName(m *listenerv3.FilterChainMatch) int {
	best := -1
	for _, name := range m.GetServerNames() {
		suffix, wildcard := strings.CutPrefix(name, "*")
		if name == lower(c.sni) || wildcard && len(c.sni) > len(suffix) && strings.HasSuffix(lower(c.sni), suffix) {
			best = max(best, 2*len(name))
			if !wildcard {
				best++
			}
		}
	}
	if len(m.GetServerNames()) == 0 {
		return 0
	}
	return best
}

func (c connection) byTransport(m *listenerv3.FilterChainMatch) int {
	want := "raw_buffer"
	if c.tls {
		want = "tls"
	}
	switch m.GetTransportProtocol() {
	case "":
		return 0
	case want:
		return 1
	}
	return -1
}

func (c connection) byProtocol(m *listenerv3.FilterChainMatch) int {
	if len(m.GetApplicationProtocols()) == 0 {
		return 0
	}
	for i, p := range c.alpn {
		if slices.Contains(m.GetApplicationProtocols(), p) {
			return len(c.alpn) - i
		}
	}
	return -1
}

// listener returns the listener that accepts connections to an address and port: the one that is
// bound to it, or else the one that accepts redirected connections.
func (e *Envoy) listener(server netip.Addr, port uint32) *listenerv3.Listener {
	var redirected *listenerv3.Listener
	for _, l := range e.listeners {
		if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND && !e.gateway {
			continue
		}
		if isRedirected(l) {
			redirected = l
			continue
		}
		addresses := []*corev3.Address{l.GetAddress()}
		for _, more := range l.GetAdditionalAddresses() {
			addresses = append(addresses, more.GetAddress())
		}
		for _, a := range addresses {
			at, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
			if err == nil && a.GetSocketAddress().GetPortValue() == port && (at == server || at.IsUnspecified() || !server.IsValid()) {
				return l
			}
		}
	}
	return redirected
}

// handshake are the TLS settings of a chain.
type handshake struct {
	required bool // a client needs a certificate
	asked    bool // a client is asked for one
	names    []func(string) bool
}

// contextOf returns a copy of the TLS context of a chain, nil for plaintext.
func contextOf(chain *listenerv3.FilterChain) (context *tlsv3.DownstreamTlsContext) {
	xds.EditTLS(chain.GetTransportSocket(), func(c *tlsv3.DownstreamTlsContext) bool {
		context = c
		return false
	})
	return context
}

// tlsOf returns the TLS settings of a chain, or nil for plaintext.
func (c *compiler) tlsOf(chain *listenerv3.FilterChain) (*handshake, error) {
	context := contextOf(chain)
	if context == nil {
		return nil, nil
	}
	out := &handshake{required: context.GetRequireClientCertificate().GetValue()}
	common := context.GetCommonTlsContext()
	validation := common.GetValidationContext()
	if combined := common.GetCombinedValidationContext(); combined != nil {
		validation = combined.GetDefaultValidationContext()
	}
	out.asked = out.required || common.GetValidationContextType() != nil
	for _, m := range validation.GetMatchTypedSubjectAltNames() {
		if m.GetSanType() != tlsv3.SubjectAltNameMatcher_URI {
			continue
		}
		test, err := c.string(m.GetMatcher())
		if err != nil {
			return nil, err
		}
		out.names = append(out.names, test)
	}
	return out, nil
}

// Ports returns the ports to which the Envoy accepts connections, sorted.
func (e *Envoy) Ports() []uint32 {
	var out []uint32
	for _, l := range e.listeners {
		if l.GetTrafficDirection() != corev3.TrafficDirection_INBOUND && !e.gateway {
			continue
		}
		port := l.GetAddress().GetSocketAddress().GetPortValue()
		if !isRedirected(l) {
			out = append(out, port)
			continue
		}
		for _, chain := range l.GetFilterChains() {
			if to := chain.GetFilterChainMatch().GetDestinationPort(); to != nil && to.GetValue() != port {
				out = append(out, to.GetValue())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ServerNames returns the names of the TLS servers at a port.
func (e *Envoy) ServerNames(port uint32) (out []string) {
	for _, l := range e.listeners {
		if l.GetAddress().GetSocketAddress().GetPortValue() == port && (e.gateway || l.GetTrafficDirection() == corev3.TrafficDirection_INBOUND) {
			for _, chain := range l.GetFilterChains() {
				out = append(out, chain.GetFilterChainMatch().GetServerNames()...)
			}
		}
	}
	return out
}

// isRedirected reports whether a listener accepts redirected connections.
func isRedirected(l *listenerv3.Listener) bool {
	return slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
		return f.GetName() == "envoy.filters.listener.original_dst"
	})
}
