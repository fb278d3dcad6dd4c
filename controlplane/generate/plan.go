// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// plan describes the outbound listeners of a proxy. Both the listener messages and the routes that
// they name are built from it.
type plan struct {
	listeners []*outboundListener // sorted by bind and port
	problems  []model.Problem
	own       string // as in planKey
}

// planKey determines the plan, together with the snapshot.
type planKey struct {
	outbound outboundKey
	route    routeKey
	// sidecar is the Sidecar whose egress listeners apply. It is empty if the Sidecar only
	// restricts imports.
	sidecar model.Key
	// loopback is the address of listeners that the application connects to directly.
	loopback string
	// unprivileged is true if such listeners cannot have ports below 1024, occupied are further
	// ports that they cannot have.
	unprivileged bool
	occupied     string
	// own is the address of the proxy if it is an endpoint of a headless service.
	own string
}

// egress is a list of services and the listeners that serve them.
type egress struct {
	// spec is the listener of the Sidecar; nil means listeners for every port.
	spec     *networkingv1alpha3.IstioEgressListener
	services []*model.Service
}

// outboundListener accepts connections to one port, at one address or at all addresses.
type outboundListener struct {
	// bind is an address, [anyAddress], or "unix://" and a path.
	bind string
	port uint32
	// bound is true if the application connects to the listener directly.
	bound bool
	// routes is the name of the listener's routes. It is empty if the listener does not detect
	// requests.
	routes string
	// host is set if the routes serve only this host.
	host string
	// services are the services whose requests the routes serve.
	services []*model.Service
	// detect is true if a service does not declare the protocol of its port.
	detect bool
	// grpcWeb is true if a service accepts gRPC-Web requests of browsers.
	grpcWeb bool
	// locked is true for a listener that the Sidecar names. No other service is added to it.
	locked bool
	// local is true for a listener at the loopback address of a workload, see [target.ownLoopback].
	local  bool
	chains []streamChain
	taken  map[streamMatch]int // chains by their match
	// from is the object that the listener is built for, the first one if there are several.
	from model.Key
	// sources are all objects that the listener is built from, except plugins.
	sources xds.Sources
}

// anyAddress is the bind address of listeners that accept connections to all addresses.
const anyAddress = ""

// streamChain is the destination of connections that are not parsed as HTTP.
type streamChain struct {
	serverNames []string
	prefixes    []netip.Prefix
	stream      envoyconf.Stream
	protocol    model.Protocol
	// byName is true if Envoy resolves the SNI of the connection.
	byName bool
	// detect is true if requests to these addresses are detected.
	detect bool
	from   model.Key
	// sources are the objects that the chain is built from, except the service.
	sources xds.Sources
}

// planner builds the plan of a proxy.
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

// planOf returns the outbound listeners of a proxy. Without interception, these are the listeners
// that its Sidecar names and those of TCP services at its own loopback address; all other traffic uses
// the HTTP proxy.
func (g *Generator) planOf(s *target) *plan {
	v := g.view(s)
	key := planKey{outbound: s.outbound, route: s.routeKey()}
	explicit, local := s.namesListeners(), s.ownLoopback() && v.streams
	if !s.intercepts() && !explicit && !local {
		return &noPlan
	}
	from := inputs{v, s.mesh.VirtualServices, nil, s.mesh.DestinationRules}
	if explicit {
		// Of other Sidecars only the imports matter, which target contains: two Sidecars with
		// equal imports share a plan.
		key.sidecar, key.loopback, from[2] = s.sidecar.Config.Key, httpProxyAddress(s), s.sidecar
	}
	if local {
		key.loopback, key.unprivileged, key.occupied = httpProxyAddress(s), s.unprivileged(), fmt.Sprint(s.proxy.Occupied)
		from[4] = s.mesh.Instances
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

// headlessAddress returns the address at which the proxy is an endpoint of a headless service, or
// "" if there is none.
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
				switch {
				case e.spec != nil:
					p.named(e, svc, port)
				case p.intercepts():
					p.anywhere(svc, port, own)
				case p.ownLoopback() && port.Protocol.IsTCP():
					p.local(svc, port)
				}
			}
		}
	}
	for _, l := range p.byKey {
		if !l.bound || l.routes != "" || len(l.chains) > 0 { // else it could only refuse connections
			p.plan.listeners = append(p.plan.listeners, l)
		}
	}
	slices.SortFunc(p.plan.listeners, func(a, b *outboundListener) int {
		return cmp.Or(strings.Compare(a.bind, b.bind), cmp.Compare(a.port, b.port))
	})
	return p.plan
}

// egress groups the visible services by listener: first the listeners of the Sidecar that have a
// port, then everything else.
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
		return named // the Sidecar names all listeners
	case all:
		rest.services = p.view.services
	default:
		slices.SortFunc(rest.services, func(a, b *model.Service) int { return a.Compare(b.ServiceKey) })
		rest.services = slices.Compact(rest.services)
	}
	return append(named, rest)
}

// named adds a port of a service to a listener that the Sidecar names.
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
		return // reported by validation
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

// ownLoopback reports whether the proxy has a loopback address for itself, as several workloads on
// one machine do whose connections are not intercepted.
func (s *target) ownLoopback() bool {
	return !s.intercepts() && httpProxyPort(s) != 0 && httpProxyAddress(s) == s.proxy.IPs[0]
}

// anotherNumber is the cure for a port that is in use at the address of a workload.
const anotherNumber = "give the port another number (spec.ports.number), with the port of the server in targetPort"

// unprivileged reports whether the proxy must not listen on ports below 1024.
func (s *target) unprivileged() bool { return s.settings != nil && s.settings.Unprivileged }

// local adds a port of a service to the listener of that port at the loopback address of the
// workload. TLS services share a port, as the SNI distinguishes them.
func (p *planner) local(svc *model.Service, port model.Port) {
	if port.Number < envoyconf.FirstFreePort && p.unprivileged() {
		return // CONNECT requests reach it
	}
	if slices.ContainsFunc(p.instances(), func(i snapshot.Instance) bool { return i.Service.ServiceKey == svc.ServiceKey }) {
		return // the port is that of its own inbound listener
	}
	if slices.Contains(p.proxy.Occupied, port.Number) {
		p.plan.problems = append(p.plan.problems, model.Problem{
			Object: svc.Source, Warning: true,
			Reason: fmt.Sprintf("spec.ports: the proxy cannot listen at %s, where another program of its machine does or which it has no right to: "+anotherNumber, envoyconf.HostPort(httpProxyAddress(p.target), port.Number)),
		})
		return
	}
	if l := p.open(httpProxyAddress(p.target), port.Number, svc); l != nil {
		l.bound, l.local = true, true
		p.stream(l, svc, port, nil)
	}
}

// anywhere adds a port of a service to the listeners that intercept connections to its addresses.
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

// stream4 adds a non-HTTP port of a service to the listener of an address.
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

// maxHeadless limits the number of listeners for one port of a headless service. Connections to
// further endpoints use the passthrough cluster.
const maxHeadless = 1000

// headless returns the endpoint addresses of a service, except that of the proxy itself.
func (p *planner) headless(svc *model.Service, port model.Port, own string) []string {
	var out []string
	for _, ep := range p.mesh.Endpoints.Of(svc.ServiceKey).OfPort(port.Number) {
		if ep.Address != own && envoyconf.IsIP(ep.Address) && !ep.HiddenFrom(p.proxy.ClusterID) {
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

// endpointsOf adds the objects that define the endpoints of a headless service to the sources of
// the listeners of their addresses.
func (p *planner) endpointsOf(svc *model.Service, port model.Port) {
	for _, ep := range p.mesh.Endpoints.Of(svc.ServiceKey).OfPort(port.Number) {
		if l := p.byKey[listenerKey{ep.Address, port.Number}]; l != nil && !l.locked {
			l.sources.Add(ep.EntryKey())
			l.sources.Add(svc.EndpointsFrom...)
		}
	}
}

// at returns the listener of an address and port. It creates the listener if it does not exist.
func (p *planner) at(bind string, port uint32, svc *model.Service) *outboundListener {
	key := listenerKey{bind, port}
	if p.byKey[key] == nil {
		p.byKey[key] = &outboundListener{bind: bind, port: port, from: svc.Source, taken: make(map[streamMatch]int)}
	}
	p.byKey[key].sources.Add(svc.Source)
	return p.byKey[key]
}

// open is like at, but returns nil if the Sidecar names the listener.
func (p *planner) open(bind string, port uint32, svc *model.Service) *outboundListener {
	if l := p.byKey[listenerKey{bind, port}]; l != nil && l.locked {
		return nil
	}
	return p.at(bind, port, svc)
}

// serve makes the listener detect requests.
func (l *outboundListener) serve(routes, host string, svc *model.Service) {
	if l.routes != "" && l.routes != routes {
		// Two hosts share the address, so that requests are routed by host.
		routes, host = envoyconf.HostPort(l.bind, l.port), ""
	}
	l.routes, l.host = routes, host
	if n := len(l.services); n == 0 || l.services[n-1] != svc { // services are added in order
		l.services = append(l.services, svc)
	}
}
