// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func (w *randomWorld) target() *networkingv1alpha3.Destination {
	d := &networkingv1alpha3.Destination{Host: w.host(), Subset: w.one("", "", "v1")}
	if w.IntN(2) == 0 {
		d.Port = &networkingv1alpha3.PortSelector{Number: w.port()}
	}
	return d
}

func (w *randomWorld) targets() []*networkingv1alpha3.RouteDestination {
	out := []*networkingv1alpha3.RouteDestination{{Destination: w.target()}}
	if w.IntN(3) == 0 {
		out = append(out, &networkingv1alpha3.RouteDestination{Destination: w.target(), Weight: 10})
	}
	return out
}

func (w *randomWorld) maybePort() uint32 { return uint32(w.IntN(2)) * w.port() }

// sidecarRoutes returns a VirtualService whose matches depend on all properties of a proxy.
func (w *randomWorld) sidecarRoutes() *networkingv1alpha3.VirtualService {
	vs := &networkingv1alpha3.VirtualService{Hosts: append(w.some("one.test", "*.two.test"), w.host()), ExportTo: w.some(".", "*", "a"), Gateways: w.some("mesh", "mesh", "a/o0")}
	for range w.IntN(3) {
		http := &networkingv1alpha3.HTTPRoute{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: w.target()}}}
		if w.IntN(2) == 0 {
			labels := w.labels()
			if w.IntN(2) == 0 {
				labels = nil
			}
			http.Match = []*networkingv1alpha3.HTTPMatchRequest{{SourceLabels: labels, SourceNamespace: w.one("", "a"), Port: w.maybePort()}}
		}
		vs.Http = append(vs.Http, http)
	}
	for range w.IntN(3) {
		tcp := &networkingv1alpha3.TCPRoute{Route: w.targets()}
		if w.IntN(3) > 0 {
			tcp.Match = []*networkingv1alpha3.L4MatchAttributes{{
				SourceLabels: w.labels(), SourceNamespace: w.one("", "a"), Port: w.maybePort(), DestinationSubnets: w.some("10.96.0.0/16", "10.96.0.1"),
			}}
		}
		vs.Tcp = append(vs.Tcp, tcp)
	}
	for range w.IntN(3) {
		vs.Tls = append(vs.Tls, &networkingv1alpha3.TLSRoute{Route: w.targets(), Match: []*networkingv1alpha3.TLSMatchAttributes{{
			SourceLabels: w.labels(), SourceNamespace: w.one("", "a"), Port: w.maybePort(), DestinationSubnets: w.some("10.96.0.0/16", "10.96.0.1"),
			SniHosts: append(w.some("x.two.test", "*.two.test", w.rarely(w.one("*", "ONE.test", "*foo", ""), "one.test")), w.one("one.test", "two.test")),
		}}})
	}
	return vs
}

func (w *randomWorld) sidecar() *networkingv1alpha3.Sidecar {
	sc := &networkingv1alpha3.Sidecar{}
	if labels := w.selector(); len(labels) > 0 {
		sc.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: labels}
	}
	if w.IntN(2) == 0 {
		sc.OutboundTrafficPolicy = &networkingv1alpha3.OutboundTrafficPolicy{Mode: networkingv1alpha3.OutboundTrafficPolicy_Mode(w.IntN(2))}
		if w.IntN(3) == 0 {
			sc.OutboundTrafficPolicy.EgressProxy = &networkingv1alpha3.Destination{Host: "one.test", Port: &networkingv1alpha3.PortSelector{Number: 80}}
		}
	}
	for range w.IntN(3) {
		sc.Egress = append(sc.Egress, &networkingv1alpha3.IstioEgressListener{
			Port: &networkingv1alpha3.SidecarPort{Number: w.port(), Name: "p", Protocol: w.protocol()}, Bind: w.rarely(w.one("::1", "0:0::1", "unix:///tmp/e", "fe80::1%eth0"), "", "", "127.0.0.1", "0.0.0.0", "10.96.0.1"),
			CaptureMode: networkingv1alpha3.CaptureMode(w.IntN(3)), Hosts: w.imported(),
		})
	}
	if len(sc.GetEgress()) == 0 || w.IntN(2) == 0 {
		sc.Egress = append(sc.Egress, &networkingv1alpha3.IstioEgressListener{Hosts: w.imported()})
	}
	for range w.IntN(3) {
		sc.Ingress = append(sc.Ingress, &networkingv1alpha3.IstioIngressListener{
			Port: &networkingv1alpha3.SidecarPort{Number: w.port(), Name: "p", Protocol: w.protocol()}, CaptureMode: networkingv1alpha3.CaptureMode(w.IntN(3)),
			Bind:            w.rarely(w.one("::1", "unix:///tmp/i", "fe80::1%eth0"), "", "", "127.0.0.1", "0.0.0.0"),
			DefaultEndpoint: w.rarely(w.one("[fe80::1%eth0]:80", "[::1]:80", "unix://@app", ":8080"), "", "127.0.0.1:8080", "0.0.0.0:8080", "unix:///tmp/app"),
		})
	}
	return sc
}

func (w *randomWorld) imported() []string {
	return append(w.some("a/*", "./*", "*/one.test", "b/*"), w.one("*/*", "./*", "a/*", "~/*", "*/*.test"))
}

// proxy returns a random proxy.
func (w *randomWorld) proxy() *model.Proxy {
	p := &model.Proxy{
		Role: w.one("sidecar", "sidecar", "sidecar", "sidecar", "router"), IPs: []string{w.one("10.0.0.1", "10.0.0.2", "10.0.0.3", "127.77.63.2", "127.77.63.3", "fd00::1")},
		Namespace: w.namespace(), ServiceAccount: "x", Labels: w.labels(), ClusterID: w.one("c1", "c2"), Network: w.one("", "n1", "n2"),
		Interception: []model.Interception{model.InterceptionNone, model.InterceptionRedirect, model.InterceptionRedirect, model.InterceptionTProxy}[w.IntN(4)],
		Node:         w.one("", "node1", "node2"), Locality: w.locality(), AutoAllocate: w.IntN(2) == 0, VHDS: w.IntN(4) == 0,
		HTTPProxyPort: uint32(w.IntN(2)) * 15080, Proxyless: w.IntN(8) == 0,
	}
	if w.IntN(3) == 0 {
		p.IPs = append(p.IPs, w.one("fd00::1", "fd00::2"))
	}
	if w.IntN(4) == 0 {
		p.NetworkView = w.some("n1", "n2")
	}
	p.ID = "p." + p.Namespace
	p.Domain = w.one("", p.Namespace+".svc.cluster.local", "other.svc.cluster.local")
	return p
}
