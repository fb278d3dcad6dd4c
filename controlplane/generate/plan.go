// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// plan are the outbound listeners of a proxy before they are messages: the
// listeners and the routes that they name are both made of it.
type plan struct {
	listeners []*outboundListener // sorted by bind and port
	problems  []model.Problem
	own       string // as in planKey
}

// planKey decides the plan, together with the snapshot.
type planKey struct {
	outbound outboundKey
	route    routeKey
	// sidecar is the one whose egress listeners count; empty if they only import.
	sidecar model.Key
	// loopback is where listeners are that the application connects to.
	loopback string
	// own is the address of the proxy if it is one of a headless service.
	own string
}

// egress are the services that some listeners serve.
type egress struct {
	// spec is the listener of the Sidecar; nil serves every port.
	spec     *networkingv1alpha3.IstioEgressListener
	services []*model.Service
}

// outboundListener takes connections to one port, at one address or all.
type outboundListener struct {
	// bind is an address, [anyAddress], or "unix://" and a path.
	bind string
	port uint32
	// bound is true if the application connects to the listener itself.
	bound bool
	// routes is the name of the routes of requests; empty if requests are not
	// looked for.
	routes string
	// host is set if the routes are those of this host alone.
	host string
	// services are those whose requests the routes serve.
	services []*model.Service
	// detect is true if a service did not say what its port speaks.
	detect bool
	// grpcWeb is true if a service takes requests of browsers in gRPC-Web.
	grpcWeb bool
	// locked is true for a listener that the Sidecar names: others leave it alone.
	locked bool
	chains []streamChain
	taken  map[streamMatch]int // chains by what they match
	// from is the object that the listener is for, the first one of several.
	from model.Key
	// sources are all objects that show in it, but for plugins.
	sources xds.Sources
}

// anyAddress stands for all addresses.
const anyAddress = ""

// streamChain says where connections go that nobody reads.
type streamChain struct {
	serverNames []string
	prefixes    []netip.Prefix
	stream      envoyconf.Stream
	// byName is true if Envoy looks up the name that TLS asks for.
	byName bool
	// detect is true if requests to these addresses are looked for.
	detect bool
	from   model.Key
	// sources are the objects that it comes from, beside the service.
	sources xds.Sources
}

// planner makes the plan of a proxy.
type planner struct {
	*target
	view   *view
	routes *routeBuilder
	byKey  map[listenerKey]*outboundListener
	plan   *plan
}

type listenerKey struct {
	bind string
	port uint32
}

// planOf returns the outbound listeners of a proxy. Without interception they are
// those that its Sidecar names: everything else goes through the HTTP proxy.
func (g *Generator) planOf(s *target) *plan {
	v := g.view(s)
	key := planKey{outbound: s.outbound, route: s.routeKey()}
	explicit := s.namesListeners()
	if !s.intercepts() && !explicit {
		return &noPlan
	}
	from := inputs{v, s.mesh.VirtualServices, nil, s.mesh.DestinationRules}
	if explicit {
		// Of others only what they import counts, which the target has: two of
		// equal imports share a plan.
		key.sidecar, key.loopback, from[2] = s.sidecar.Config.Key, httpProxyAddress(s), s.sidecar
	}
	if v.headless && s.intercepts() {
		key.own = s.headlessAddress()
		from[4] = s.mesh.Endpoints
	}
	return g.plans.get(key, s.mesh.Sequence, from, func(*plan) *plan {
		p := &planner{target: s, view: v, routes: g.newRouteBuilder(s, v), byKey: make(map[listenerKey]*outboundListener), plan: &plan{}}
		return p.make(key.own)
	})
}

var noPlan plan

// namesListeners reports whether the Sidecar names outbound listeners.
func (s *target) namesListeners() bool {
	return slices.ContainsFunc(s.sidecar.Egress(), func(l *snapshot.EgressListener) bool { return l.Spec.GetPort() != nil })
}

// headlessAddress is the address at which the proxy is an endpoint of a
// headless service; empty if it is not.
func (s *target) headlessAddress() string {
	for _, i := range s.instances() {
		if i.Service.Headless {
			return i.Endpoint.Address
		}
	}
	return ""
}

func (p *planner) make(own string) *plan {
	p.plan.own = own
	for _, e := range p.egress() {
		for _, svc := range e.services {
			for _, port := range svc.Ports {
				if e.spec != nil {
					p.named(e, svc, port)
				} else if p.intercepts() {
					p.anywhere(svc, port, own)
				}
			}
		}
	}
	for _, l := range p.byKey {
		p.plan.listeners = append(p.plan.listeners, l)
	}
	slices.SortFunc(p.plan.listeners, func(a, b *outboundListener) int {
		return cmp.Or(strings.Compare(a.bind, b.bind), cmp.Compare(a.port, b.port))
	})
	return p.plan
}

// egress divides what the proxy sees by listener: those of the Sidecar that
// have a port, then everything else.
func (p *planner) egress() []egress {
	var named []egress
	rest, all := egress{}, true
	for _, l := range p.sidecar.Egress() {
		var seen []*model.Service
		for _, svc := range p.view.services {
			if l.Imports(svc.Namespace, svc.Hostname) {
				seen = append(seen, svc)
			}
		}
		if l.Spec.GetPort() != nil {
			named = append(named, egress{spec: l.Spec, services: seen})
			continue
		}
		all = false
		rest.services = append(rest.services, seen...)
	}
	if len(named) == 0 {
		all = true
	}
	switch {
	case all && len(named) > 0:
		return named // the Sidecar names every listener that there is
	case all:
		rest.services = p.view.services
	default:
		slices.SortFunc(rest.services, func(a, b *model.Service) int { return a.Compare(b.ServiceKey) })
		rest.services = slices.Compact(rest.services)
	}
	return append(named, rest)
}

// named adds a port of a service to the listener that the Sidecar names.
func (p *planner) named(e egress, svc *model.Service, port model.Port) {
	number := e.spec.GetPort().GetNumber()
	path, unix := envoyconf.UnixPath(e.spec.GetBind())
	if number != 0 && number != port.Number || number == 0 && !unix || port.Protocol == model.ProtocolUDP {
		return
	}
	bound := unix || !p.intercepts() || e.spec.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE
	bind := e.spec.GetBind()
	if bind == "" && bound {
		bind = httpProxyAddress(p.target)
	}
	if bind == "0.0.0.0" || bind == "::" {
		bind = anyAddress
	}
	if bind != anyAddress && !unix && !envoyconf.IsIP(bind) {
		return // validation tells the author
	}
	l := p.at(bind, number, svc)
	l.bound, l.locked = bound, true
	l.sources.AddConfigs(p.sidecar.Config)
	protocol := model.ParseProtocol(cmp.Or(e.spec.GetPort().GetProtocol(), e.spec.GetPort().GetName()))
	routes := envoyconf.Number(number)
	if unix {
		routes = path
	}
	switch {
	case protocol.IsHTTP():
		l.serve(routes, "", svc)
	case protocol.Sniffed():
		l.detect = true
		l.serve(routes, "", svc)
		p.stream(l, svc, port, nil)
	default:
		p.stream(l, svc, port, nil)
	}
}

// anywhere adds a port of a service to the listeners that catch what the
// application sends to its addresses.
func (p *planner) anywhere(svc *model.Service, port model.Port, own string) {
	switch {
	case port.Protocol == model.ProtocolUDP:
		return
	case port.Protocol.IsHTTP():
		if l := p.open(anyAddress, port.Number, svc); l != nil {
			l.serve(envoyconf.Number(port.Number), "", svc)
			l.grpcWeb = l.grpcWeb || port.Protocol == model.ProtocolGRPCWeb
		}
		return
	}
	var single []string
	var ranges []netip.Prefix
	for _, address := range svc.AddressesFor(p.proxy) {
		if ip, err := netip.ParseAddr(address); err == nil && !ip.IsUnspecified() && ip.Zone() == "" {
			single = append(single, ip.String())
		} else if prefix, err := netip.ParsePrefix(address); err == nil {
			ranges = append(ranges, prefix.Masked())
		}
	}
	if svc.Headless {
		single = p.headless(svc, port, own)
		if len(single) == 0 {
			return
		}
	}
	for _, address := range single {
		p.stream4(address, svc, port, nil)
	}
	if svc.Headless {
		p.endpointsOf(svc, port)
	}
	if len(ranges) > 0 || len(single) == 0 {
		p.stream4(anyAddress, svc, port, ranges)
	}
}

// stream4 adds a port of a service that is no HTTP to the listener of an
// address.
func (p *planner) stream4(bind string, svc *model.Service, port model.Port, ranges []netip.Prefix) {
	l := p.open(bind, port.Number, svc)
	if l == nil {
		return
	}
	if port.Protocol.Sniffed() {
		l.detect = true
		if bind == anyAddress {
			l.serve(envoyconf.Number(port.Number), "", svc)
		} else {
			l.serve(envoyconf.HostPort(svc.Hostname, port.Number), svc.Hostname, svc)
		}
	}
	p.stream(l, svc, port, ranges)
}

// maxHeadless bounds the listeners that one port of one headless service gets;
// connections to further endpoints pass through.
const maxHeadless = 1000

// headless returns the addresses of the endpoints of a service, but for that of
// the proxy itself.
func (p *planner) headless(svc *model.Service, port model.Port, own string) []string {
	var out []string
	for _, ep := range p.mesh.Endpoints.Of(svc.ServiceKey).OfPort(port.Number) {
		if ep.Address != own && envoyconf.IsIP(ep.Address) {
			out = append(out, ep.Address)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > maxHeadless {
		out = out[:maxHeadless]
	}
	return out
}

// endpointsOf adds the objects behind the endpoints of a headless service to the
// listeners of their addresses.
func (p *planner) endpointsOf(svc *model.Service, port model.Port) {
	for _, ep := range p.mesh.Endpoints.Of(svc.ServiceKey).OfPort(port.Number) {
		if l := p.byKey[listenerKey{ep.Address, port.Number}]; l != nil && !l.locked {
			l.sources.Add(ep.EntryKey())
			l.sources.Add(svc.EndpointsFrom...)
		}
	}
}

// at returns the listener of an address and port, a new one if there is none.
func (p *planner) at(bind string, port uint32, svc *model.Service) *outboundListener {
	key := listenerKey{bind, port}
	if p.byKey[key] == nil {
		p.byKey[key] = &outboundListener{bind: bind, port: port, from: svc.Source, taken: make(map[streamMatch]int)}
	}
	p.byKey[key].sources.Add(svc.Source)
	return p.byKey[key]
}

// open is at for listeners that the Sidecar does not name; nil if it does.
func (p *planner) open(bind string, port uint32, svc *model.Service) *outboundListener {
	if l := p.byKey[listenerKey{bind, port}]; l != nil && l.locked {
		return nil
	}
	return p.at(bind, port, svc)
}

// serve makes the listener look for requests.
func (l *outboundListener) serve(routes, host string, svc *model.Service) {
	if l.routes != "" && l.routes != routes {
		// Two hosts have one address: their requests are told apart by host.
		routes, host = envoyconf.HostPort(l.bind, l.port), ""
	}
	l.routes, l.host = routes, host
	if n := len(l.services); n == 0 || l.services[n-1] != svc { // they come in order
		l.services = append(l.services, svc)
	}
}
