// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// intercepts reports whether what the application of a proxy sends is redirected
// to the proxy.
func intercepts(p *model.Proxy) bool {
	return p.Interception == model.InterceptionRedirect || p.Interception == model.InterceptionTProxy
}

// splitListener returns address and port of the name of a listener, "address_port";
// false for others.
func splitListener(name string) (address string, port uint32, ok bool) {
	i := strings.LastIndex(name, "_")
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 16)
	return strings.Trim(name[:i], "[]"), uint32(n), err == nil
}

func isWildcard(address string) bool { return address == "0.0.0.0" || address == "::" }

// listener are the objects behind a listener, but for those that own finds.
func (o *origins) listener(name string) []model.Key {
	switch {
	case o.servers != nil:
		return o.edgeListener(name)
	case o.proxy.Proxyless:
		return o.host(o.dialed(name)).routes
	case name == "virtualOutbound":
		if o.sidecar.OutboundPolicy() != nil {
			return []model.Key{o.sidecar.Config.Key}
		}
		return nil
	}
	if l := o.egress(name); l != nil {
		return joined([]model.Key{o.sidecar.Config.Key}, o.streams(o.importedBy(l), l.Spec.GetPort().GetNumber(), true))
	}
	address, port, ok := splitListener(name)
	if !ok || !intercepts(o.proxy) {
		return nil
	}
	return o.streams(o.at(address, port), port, false)
}

// at returns the services whose port has a place in the listener of an address.
func (o *origins) at(address string, port uint32) []*model.Service {
	var out []*model.Service
	for _, svc := range o.byPort[port] {
		i := slices.IndexFunc(svc.Ports, func(p model.Port) bool { return p.Number == port })
		single, ranged := o.addresses(svc, port)
		switch protocol := svc.Ports[i].Protocol; {
		case protocol == model.ProtocolUDP:
		case isWildcard(address):
			if protocol.IsHTTP() || ranged || len(single) == 0 && !svc.Headless {
				out = append(out, svc)
			}
		case !protocol.IsHTTP() && slices.Contains(single, address):
			out = append(out, svc)
		}
	}
	return out
}

// addresses returns the addresses to which a service is sent, and whether there are
// ranges.
func (o *origins) addresses(svc *model.Service, port uint32) (single []string, ranged bool) {
	if svc.Headless {
		if set := o.mesh.Endpoints.Of(svc.ServiceKey); set != nil {
			for _, ep := range set.List {
				if ep.ServicePort == port {
					single = append(single, ep.Address)
				}
			}
		}
		return single, false
	}
	for _, text := range svc.AddressesFor(o.proxy) {
		if ip, err := netip.ParseAddr(text); err == nil && !ip.IsUnspecified() {
			single = append(single, ip.String())
		} else if err != nil {
			ranged = true
		}
	}
	return single, ranged
}

// streams are the objects behind a listener for services: where connections go
// that are no requests. Spelled is true for a listener with a protocol of its own.
func (o *origins) streams(services []*model.Service, port uint32, spelled bool) []model.Key {
	var out []model.Key
	for _, svc := range services {
		out = append(out, svc.Source)
		i := slices.IndexFunc(svc.Ports, func(p model.Port) bool { return p.Number == port || spelled && port == 0 })
		if i < 0 || svc.Ports[i].Protocol.IsHTTP() && !spelled {
			continue // requests have routes
		}
		if vs := o.rules(svc.Hostname); vs != nil && len(vs.Spec.GetTls())+len(vs.Spec.GetTcp()) > 0 {
			out = append(out, o.written(vs.Config)...)
		}
	}
	return joined(out)
}

// egress returns the listener of the Sidecar that has a name; nil for none.
func (o *origins) egress(name string) *snapshot.EgressListener {
	address, port, ok := splitListener(name)
	for _, l := range o.sidecar.Egress() {
		if l.Spec.GetPort() == nil {
			continue
		}
		bind := l.Spec.GetBind()
		if path, unix := strings.CutPrefix(bind, "unix://"); unix {
			if path == name {
				return l
			}
			continue
		}
		if !ok || l.Spec.GetPort().GetNumber() != port {
			continue
		}
		ip, err := netip.ParseAddr(address)
		redirected := intercepts(o.proxy) && l.Spec.GetCaptureMode() != networkingv1alpha3.CaptureMode_NONE
		switch {
		case bind == address, isWildcard(bind) && isWildcard(address):
			return l
		case bind == "" && redirected && isWildcard(address), bind == "" && !redirected && err == nil && ip.IsLoopback():
			return l
		}
	}
	return nil
}

// importedBy returns the services that a listener of the Sidecar serves.
func (o *origins) importedBy(l *snapshot.EgressListener) []*model.Service {
	var out []*model.Service
	number := l.Spec.GetPort().GetNumber()
	for _, svc := range o.mesh.Services.Visible(o.proxy.Namespace, o.sidecar) {
		has := number == 0 || slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == number })
		if has && l.Imports(svc.Namespace, svc.Hostname) {
			out = append(out, svc)
		}
	}
	return out
}

// dialed returns the host of a listener that an application dials by a name,
// "host:port"; empty for one with an address.
func (o *origins) dialed(name string) string {
	host, _, err := net.SplitHostPort(name)
	if err != nil {
		return ""
	}
	domain := o.mesh.Domain
	for _, suffix := range []string{"", "." + o.proxy.Namespace + ".svc." + domain, ".svc." + domain, "." + domain} {
		if o.services[host+suffix] != nil {
			return host + suffix
		}
	}
	return host
}

// route are the objects behind a route configuration. One whose hosts are
// resources of their own has none.
func (o *origins) route(name string) []model.Key {
	if strings.HasSuffix(name, vhdsSuffix) {
		return nil
	}
	if o.servers != nil {
		return o.edgeRoute(name, "")
	}
	if host, _, ok := hostOfCluster(name); ok { // of a client without proxy
		return o.host(host).routes
	}
	if name == "http_proxy" {
		return o.allRoutes()
	}
	if port, err := strconv.ParseUint(name, 10, 16); err == nil {
		return o.portRoutes(uint32(port))
	}
	for _, l := range o.sidecar.Egress() {
		if path, unix := strings.CutPrefix(l.Spec.GetBind(), "unix://"); unix && path == name {
			return o.routesTo(o.importedBy(l))
		}
	}
	host, text, err := net.SplitHostPort(name)
	port, badPort := strconv.ParseUint(text, 10, 16)
	switch {
	case err != nil || badPort != nil:
		return nil
	case o.services[host] != nil:
		return o.host(host).routes
	}
	return o.routesTo(o.at(host, uint32(port))) // hosts that share an address
}

// portRoutes are the objects behind the routes of a port.
func (o *origins) portRoutes(port uint32) []model.Key {
	for _, l := range o.sidecar.Egress() {
		if p := l.Spec.GetPort(); p != nil && p.GetNumber() == port {
			return o.routesTo(o.importedBy(l))
		}
	}
	out := o.routesTo(o.byPort[port])
	if port == 80 { // of hosts without a service
		out = joined(out, o.otherRoutes())
	}
	return out
}

func (o *origins) routesTo(services []*model.Service) []model.Key {
	var lists [][]model.Key
	for _, svc := range services {
		lists = append(lists, o.host(svc.Hostname).routes)
	}
	return joined(lists...)
}

// otherRoutes are the VirtualServices of hosts that no service has.
func (o *origins) otherRoutes() []model.Key {
	var lists [][]model.Key
	for _, vs := range o.mesh.VirtualServices.All {
		for _, host := range vs.Hosts {
			if o.services[host] == nil && o.rules(host) == vs && len(vs.Spec.GetHttp()) > 0 {
				lists = append(lists, o.ofRoutes(vs))
			}
		}
	}
	return joined(lists...)
}

// allRoutes are the objects behind a route configuration that holds all hosts.
func (o *origins) allRoutes() []model.Key {
	var lists [][]model.Key
	for host := range o.services {
		lists = append(lists, o.host(host).routes)
	}
	return joined(joined(lists...), o.otherRoutes())
}
