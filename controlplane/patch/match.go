// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
)

// isVirtual reports whether a listener receives all redirected connections in one direction. Its
// filter chains have the ports that others listen at.
func isVirtual(l *listenerv3.Listener) bool {
	return l.GetName() == "virtualInbound" || l.GetName() == "virtualOutbound"
}

func (p *Patch) matchesListener(l *listenerv3.Listener) bool {
	m := p.match.GetListener()
	switch {
	case m == nil:
		return true
	case m.GetName() != "" && m.GetName() != l.GetName():
		return false
	case p.ApplyTo != listener && isVirtual(l):
		return true
	}
	return m.GetPortNumber() == 0 || l.GetAddress().GetSocketAddress().GetPortValue() == m.GetPortNumber()
}

func (p *Patch) matchesChain(l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	m, has := p.match.GetListener(), c.GetFilterChainMatch()
	if isVirtual(l) && m.GetPortNumber() != 0 && has.GetDestinationPort().GetValue() != m.GetPortNumber() {
		return false
	}
	want := m.GetFilterChain()
	switch {
	case want.GetName() != "" && want.GetName() != c.GetName(),
		want.GetSni() != "" && !slices.Contains(has.GetServerNames(), want.GetSni()),
		want.GetTransportProtocol() != "" && want.GetTransportProtocol() != has.GetTransportProtocol(),
		want.GetDestinationPort() != 0 && want.GetDestinationPort() != has.GetDestinationPort().GetValue():
		return false
	case want.GetApplicationProtocols() == "":
		return true
	}
	for protocol := range strings.SplitSeq(want.GetApplicationProtocols(), ",") {
		if !slices.Contains(has.GetApplicationProtocols(), protocol) {
			return false
		}
	}
	return true
}

// filter returns the name of the network filter that a patch matches, or "" for any.
func (p *Patch) filter() string {
	return validate.CurrentName(p.match.GetListener().GetFilterChain().GetFilter().GetName())
}

// subFilter returns the name of the HTTP filter that a patch matches, or "" for any.
func (p *Patch) subFilter() string {
	return validate.CurrentName(p.match.GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName())
}

// listenerFilter returns the name of the listener filter that a patch matches, or "" for any.
func (p *Patch) listenerFilter() string {
	return validate.CurrentName(p.match.GetListener().GetListenerFilter())
}

// VHDSSuffix is the suffix of the names of route configurations whose virtual hosts are separate
// resources. Patches match the name without it.
const VHDSSuffix = ".vhds"

func (r *run) matchesRoutes(p *Patch, full string) bool {
	m, name := p.match.GetRouteConfiguration(), strings.TrimSuffix(full, VHDSSuffix)
	if m == nil {
		return true
	}
	if m.GetName() != "" && m.GetName() != name && m.GetName() != full {
		return false
	}
	if r.Context != networkingv1alpha3.EnvoyFilter_GATEWAY {
		return m.GetPortNumber() == 0 || m.GetPortNumber() == portOfRoutes(name)
	}
	port, portName, gateway := gatewayRoutes(name)
	if want := m.GetPortNumber(); want != 0 {
		if of, mapped := r.Ports[port]; mapped && !slices.Contains(of, want) || !mapped && port != want {
			return false
		}
	}
	return (m.GetPortName() == "" || m.GetPortName() == portName) && (m.GetGateway() == "" || m.GetGateway() == gateway)
}

// portOfRoutes returns the port in the name of the routes of a sidecar: "80" or "inbound|80||".
func portOfRoutes(name string) uint32 {
	if rest, ok := strings.CutPrefix(name, "inbound|"); ok {
		name, _, _ = strings.Cut(rest, "|")
	}
	n, err := strconv.ParseUint(name, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// gatewayRoutes splits the name of the routes of a gateway: "http.8080" or
// "https.443.port-name.gateway.namespace".
func gatewayRoutes(name string) (port uint32, portName, gateway string) {
	parts := strings.Split(name, ".")
	if len(parts) < 2 {
		return 0, "", ""
	}
	n, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return 0, "", ""
	}
	if parts[0] == "https" && len(parts) >= 5 {
		portName, gateway = parts[2], parts[len(parts)-1]+"/"+strings.Join(parts[3:len(parts)-1], ".")
	}
	return uint32(n), portName, gateway
}

func (p *Patch) matchesHost(vh *routev3.VirtualHost) bool {
	m := p.match.GetRouteConfiguration().GetVhost()
	return (m.GetName() == "" || m.GetName() == vh.GetName()) &&
		(m.GetDomainName() == "" || slices.Contains(vh.GetDomains(), m.GetDomainName()))
}

func (p *Patch) matchesRoute(route *routev3.Route) bool {
	m := p.match.GetRouteConfiguration().GetVhost().GetRoute()
	if m.GetName() != "" && m.GetName() != route.GetName() {
		return false
	}
	const (
		forward  = networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE
		redirect = networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT
		respond  = networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE
	)
	switch want := m.GetAction(); route.GetAction().(type) {
	case *routev3.Route_Route:
		return want == 0 || want == forward
	case *routev3.Route_Redirect:
		return want == 0 || want == redirect
	case *routev3.Route_DirectResponse:
		return want == 0 || want == respond
	}
	return true
}

func (r *run) matchesCluster(p *Patch, name string) bool {
	m := p.match.GetCluster()
	if m == nil {
		return true
	}
	if m.GetName() != "" {
		return m.GetName() == name
	}
	parts := strings.SplitN(name, "|", 4)
	direction, subset, host, port := "", "", "", uint32(0)
	if len(parts) == 4 {
		n, _ := strconv.ParseUint(parts[1], 10, 16)
		direction, port, subset, host = parts[0], uint32(n), parts[2], parts[3]
	}
	hosts := []string{host}
	if direction == "inbound" {
		hosts = r.Hosts[port]
	}
	return (m.GetSubset() == "" || m.GetSubset() == subset) &&
		(m.GetService() == "" || slices.Contains(hosts, m.GetService())) &&
		(m.GetPortNumber() == 0 || m.GetPortNumber() == port)
}
