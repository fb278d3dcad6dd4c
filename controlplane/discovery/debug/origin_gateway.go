// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// edgeServer is a server of a Gateway as the resources of a proxy name it.
type edgeServer struct {
	gateway  *snapshot.Gateway
	spec     *networkingv1alpha3.Server
	listener string
	route    string // empty for one that hands connections on
}

// edgeServers are the servers of the Gateways that select a proxy; never nil. One
// that lost its port to another server is among them: problems tell of it.
func edgeServers(mesh *snapshot.Mesh, proxy *model.Proxy, scoped bool) []edgeServer {
	out := []edgeServer{}
	ports := translated(mesh, proxy)
	wildcard := "::"
	for _, text := range proxy.IPs {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Unmap().Is4() {
			wildcard = "0.0.0.0"
		}
	}
	for _, gw := range mesh.Gateways.For(proxy.Namespace, proxy.Labels, scoped) {
		for _, spec := range gw.Spec.GetServers() {
			out = append(out, newEdgeServer(gw, spec, ports, wildcard))
		}
	}
	return out
}

func newEdgeServer(gw *snapshot.Gateway, spec *networkingv1alpha3.Server, ports map[uint32]uint32, wildcard string) edgeServer {
	s := edgeServer{gateway: gw, spec: spec}
	number := spec.GetPort().GetNumber()
	port := cmp.Or(ports[number], number)
	bind, suffix := cmp.Or(spec.GetBind(), wildcard), ""
	if ip, err := netip.ParseAddr(bind); err == nil {
		bind = ip.String()
	}
	if bind != wildcard {
		suffix = "." + bind
	}
	if path, unix := strings.CutPrefix(bind, "unix://"); unix {
		port, s.listener = 0, path
	} else if strings.Contains(bind, ":") {
		s.listener = "[" + bind + "]_" + decimal(port)
	} else {
		s.listener = bind + "_" + decimal(port)
	}
	protocol := model.ParseProtocol(spec.GetPort().GetProtocol())
	switch mode := spec.GetTls().GetMode(); {
	case protocol.IsHTTP():
		s.route = "http." + decimal(port) + suffix
	case protocol == model.ProtocolHTTPS && mode != networkingv1alpha3.ServerTLSSettings_PASSTHROUGH && mode != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		s.route = "https." + decimal(number) + "." + spec.GetPort().GetName() + "." + gw.Config.Name + "." + gw.Config.Namespace + suffix
	}
	return s
}

// automatic reports whether the server hands connections on by the name that they
// ask for.
func (s edgeServer) automatic() bool {
	return s.spec.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// translated returns the ports at which a gateway takes what its services, those of
// its own namespace, call other ports.
func translated(mesh *snapshot.Mesh, proxy *model.Proxy) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, i := range mesh.Instances.At(proxy.IPs) {
		_, off := i.Service.Labels["experimental.istio.io/disable-gateway-port-translation"]
		if _, known := out[i.Endpoint.ServicePort]; !off && !known && i.Service.Namespace == proxy.Namespace {
			out[i.Endpoint.ServicePort] = i.Endpoint.Port
		}
	}
	return out
}

// bound returns the VirtualServices of a Gateway that the proxy sees.
func (o *origins) bound(gw *snapshot.Gateway) []*snapshot.VirtualService {
	var out []*snapshot.VirtualService
	for _, vs := range o.mesh.VirtualServices.OfGateway(gw.Name) {
		if vs.VisibleFrom(o.proxy.Namespace) {
			out = append(out, vs)
		}
	}
	return out
}

// edgeListener are the objects behind a listener of a gateway: those of requests
// have routes of their own.
func (o *origins) edgeListener(name string) []model.Key {
	var lists [][]model.Key
	for _, s := range o.servers {
		if s.listener != name {
			continue
		}
		lists = append(lists, o.written(s.gateway.Config))
		if s.route != "" || s.automatic() {
			continue
		}
		for _, vs := range o.bound(s.gateway) {
			if len(vs.Spec.GetTls())+len(vs.Spec.GetTcp()) > 0 {
				lists = append(lists, o.written(vs.Config))
			}
		}
	}
	return joined(lists...)
}

// edgeRoute are the objects behind routes of a gateway, or behind those of one
// host; empty for all.
func (o *origins) edgeRoute(name, host string) []model.Key {
	var lists [][]model.Key
	for _, s := range o.servers {
		if s.route != name {
			continue
		}
		lists = append(lists, o.written(s.gateway.Config))
		for _, vs := range o.bound(s.gateway) {
			if len(vs.Spec.GetHttp()) > 0 && (host == "" || len(snapshot.IntersectHosts(vs.Hosts, []string{host})) > 0) {
				lists = append(lists, o.ofRoutes(vs))
			}
		}
	}
	return joined(lists...)
}

// automatic are the Gateways that hand mutual TLS on by the name that it asks for.
func (o *origins) automatic() []model.Key {
	var lists [][]model.Key
	for _, s := range o.servers {
		if s.automatic() {
			lists = append(lists, o.written(s.gateway.Config))
		}
	}
	return joined(lists...)
}

// gatewayNames are the names of the Gateways of a VirtualService, without their
// namespaces.
func gatewayNames(c *model.Config) []string {
	var out []string
	if spec, ok := c.Spec.(*networkingv1alpha3.VirtualService); ok {
		for _, name := range spec.GetGateways() {
			out = append(out, name[strings.LastIndex(name, "/")+1:])
		}
	}
	return out
}
