// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// InForce reports whether objects of a kind affect the configuration of proxies. A snapshot reads
// objects of other kinds only to report their problems.
func InForce(kind model.Kind) bool {
	switch kind {
	case model.ServiceEntry, model.WorkloadEntry, model.VirtualService, model.DestinationRule, model.PeerAuthentication, model.Sidecar, model.Gateway,
		model.WasmPlugin, model.TrafficExtension, model.AuthorizationPolicy, model.RequestAuthentication, model.Telemetry, model.EnvoyFilter:
		return true
	case model.GatewayClass, model.KubernetesGateway, model.HTTPRoute, model.GRPCRoute, model.TLSRoute, model.TCPRoute,
		model.ListenerSet, model.ReferenceGrant, model.BackendTLSPolicy, model.Ingress, model.IngressClass: // through the objects that they are converted to
		return true
	}
	return false
}

// Gateway is one user object.
type Gateway struct {
	Config *model.Config
	Spec   *networkingv1alpha3.Gateway
	// Name is namespace/name.
	Name string
}

// Gateways is the index of Gateways by workload.
type Gateways struct {
	// SelectorLabels are the label keys that selectors use, sorted. Proxies with equal values for
	// these keys are selected by the same objects.
	SelectorLabels []string

	sorted []*Gateway // oldest first
	byName map[string]*Gateway
	all    []*model.Config
}

func (g *Gateways) objects() []*model.Config {
	if g == nil {
		return nil
	}
	return g.all
}

func newGateways(old *Gateways, objs []*model.Config, _ settings) *Gateways {
	g := &Gateways{byName: make(map[string]*Gateway), all: objs}
	labels := make(map[string]bool)
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.Gateway)
		if !ok {
			continue
		}
		gw := &Gateway{Config: obj, Spec: spec, Name: obj.Namespace + "/" + obj.Name}
		if old != nil && old.byName[gw.Name] != nil && sameConfig(old.byName[gw.Name].Config, obj) {
			gw = old.byName[gw.Name]
		}
		g.sorted = append(g.sorted, gw)
		g.byName[gw.Name] = gw
		for k := range spec.GetSelector() {
			labels[k] = true
		}
	}
	g.SelectorLabels = slices.Sorted(maps.Keys(labels))
	return g
}

// Get returns the Gateway with the given name, namespace/name, or nil if it does not exist.
func (g *Gateways) Get(name string) *Gateway { return g.byName[name] }

// For returns the Gateways that select a workload, oldest first. Gateways without a selector select
// every gateway workload. If ownNamespace is true, only Gateways of the same namespace apply; those
// converted from the Gateway API never apply to other namespaces.
func (g *Gateways) For(namespace string, labels map[string]string, ownNamespace bool) []*Gateway {
	var out []*Gateway
	for _, gw := range g.sorted {
		own := gw.Config.Namespace == namespace || !ownNamespace && gw.Config.Annotations[semanticsAnnotation] != gatewaySemantics
		if own && model.Selects(gw.Spec.GetSelector(), labels) {
			out = append(out, gw)
		}
	}
	return out
}

// ServerHosts returns the hosts of a server of the Gateway that VirtualServices of a namespace may
// use: "host" is for all namespaces, "namespace/host" and "./host" for one.
func (g *Gateway) ServerHosts(server *networkingv1alpha3.Server, namespace string) []string {
	var out []string
	for _, h := range server.GetHosts() {
		of, host, ok := strings.Cut(h, "/")
		switch {
		case !ok:
			host = h
		case of == "." && namespace != g.Config.Namespace, of != "." && of != "*" && of != namespace:
			continue
		}
		out = append(out, strings.ToLower(host))
	}
	return out
}

// IntersectHosts returns the hosts that both lists cover, without duplicates. Of each pair it
// returns the narrower host, in the order of the second list.
func IntersectHosts(a, b []string) []string {
	var out []string
	add := func(host string) {
		if !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	for _, y := range b {
		for _, x := range a {
			switch {
			case HostMatches(x, y):
				add(y)
			case HostMatches(y, x):
				add(x)
			}
		}
	}
	return out
}

// gateways checks that the Gateways of a VirtualService exist.
func (c *checker) gateways(obj *model.Config, spec *networkingv1alpha3.VirtualService) {
	for i, name := range spec.GetGateways() {
		if name == "mesh" {
			continue
		}
		full := GatewayName(name, obj.Namespace)
		gateway := c.mesh.Gateways.Get(full)
		if gateway == nil {
			c.dangling(obj, "spec.gateways[%d]: there is no Gateway %s, so the routes have no effect there; correct the name or create it", i, full)
			continue
		}
		c.gatewayHosts(obj, spec, gateway)
	}
}

// gatewayHosts checks that a Gateway has a server for each host of a
// VirtualService.
func (c *checker) gatewayHosts(obj *model.Config, spec *networkingv1alpha3.VirtualService, gateway *Gateway) {
	for i, h := range spec.GetHosts() {
		host := []string{c.mesh.ResolveHost(h, obj.Namespace)}
		covered := slices.ContainsFunc(gateway.Spec.GetServers(), func(s *networkingv1alpha3.Server) bool {
			return len(IntersectHosts(gateway.ServerHosts(s, obj.Namespace), host)) > 0
		})
		if !covered {
			c.report(obj, "spec.hosts[%d]: no server of the Gateway %s accepts %q for VirtualServices of the namespace %s, so the host has no effect there; add it to spec.servers[].hosts of the Gateway",
				i, gateway.Name, h, obj.Namespace)
		}
	}
}

// gatewaysOf returns the names of the Gateways that a VirtualService applies to, without
// duplicates.
func gatewaysOf(obj *model.Config, spec *networkingv1alpha3.VirtualService) []string {
	var names []string
	seen := map[string]bool{}
	for _, name := range spec.GetGateways() {
		if full := GatewayName(name, obj.Namespace); name != "mesh" && !seen[full] {
			seen[full] = true
			names = append(names, full)
		}
	}
	return names
}

// GatewayName returns namespace/name for a Gateway reference in a VirtualService: a name in its own
// namespace, ./name, namespace/name, or the legacy form name.namespace.svc...
func GatewayName(name, namespace string) string {
	if of, rest, ok := strings.Cut(name, "/"); ok {
		if of == "." {
			of = namespace
		}
		return of + "/" + rest
	}
	if short, rest, ok := strings.Cut(name, "."); ok {
		of, _, _ := strings.Cut(rest, ".")
		return of + "/" + short
	}
	return namespace + "/" + name
}
