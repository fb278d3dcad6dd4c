// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// groupKey identifies the routes that become one VirtualService. Requests are matched against the
// rules of all of them, the most specific first.
type groupKey struct {
	// gateway is the Istio Gateway, as namespace/name, or "mesh" for a Service.
	gateway string
	host    string
	// consumer is the only namespace whose callers use the routes; empty means all namespaces.
	consumer string
	layer    layer
}

// layer is the protocol layer at which a VirtualService routes.
type layer int

const (
	layerHTTP layer = iota
	layerTLS
	layerTCP
)

// entry is one match of one rule.
type entry struct {
	weight
	route *networkingv1alpha3.HTTPRoute
	tls   *networkingv1alpha3.TLSRoute
	tcp   *networkingv1alpha3.TCPRoute
}

// weight determines the precedence of a match.
type weight struct {
	path     int // kind of the path match; higher values come first
	length   int
	method   bool
	headers  int
	queries  int
	of       *model.Config
	position int // in the route
}

// precedence orders matches as the specification of HTTPRoute requires.
func precedence(a, b weight) int {
	return cmp.Or(
		cmp.Compare(b.path, a.path), cmp.Compare(b.length, a.length), cmp.Compare(b2i(b.method), b2i(a.method)),
		cmp.Compare(b.headers, a.headers), cmp.Compare(b.queries, a.queries), older(a.of, b.of), cmp.Compare(a.position, b.position),
	)
}

// group is a VirtualService to be built.
type group struct {
	key     groupKey
	entries []entry
	parents []string
	routes  []*model.Config // without duplicates
}

// join adds the entries of a route to the VirtualService of each host at which the route receives
// requests.
func (c *converter) join(r *route, at attachment, of layer, entries []entry) {
	if at.listener != nil && !at.listener.serves() {
		return
	}
	for _, host := range at.hosts {
		key := groupKey{gateway: "mesh", host: host, layer: of}
		if at.listener != nil && of == layerHTTP && !at.listener.owns(host) {
			continue
		}
		if at.listener != nil {
			key.gateway = at.listener.of.Namespace + "/" + orText(at.gateway, at.listener.gatewayName())
		} else if r.Namespace != at.of.namespace {
			key.consumer = r.Namespace
		}
		g := c.groups[key]
		if g == nil {
			g = &group{key: key}
			c.groups[key] = g
		}
		for _, e := range entries {
			e.of = r.Config
			g.entries = append(g.entries, e)
		}
		if !slices.Contains(g.routes, r.Config) {
			g.routes = append(g.routes, r.Config)
			g.parents = append(g.parents, fmt.Sprintf("%s/%s.%s", r.Kind, r.Name, r.Namespace))
		}
	}
}

// writeGroups builds the VirtualServices. Each is named after its oldest route.
func (c *converter) writeGroups() {
	groups := make([]*group, 0, len(c.groups))
	for _, g := range c.groups {
		slices.SortStableFunc(g.entries, func(a, b entry) int { return precedence(a.weight, b.weight) })
		slices.SortFunc(g.routes, older)
		slices.Sort(g.parents)
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(
			older(a.routes[0], b.routes[0]), cmp.Compare(a.routes[0].Kind, b.routes[0].Kind), cmp.Compare(a.key.layer, b.key.layer),
			cmp.Compare(a.key.gateway, b.key.gateway), cmp.Compare(a.key.host, b.key.host), cmp.Compare(a.key.consumer, b.key.consumer),
		)
	})
	count := map[*model.Config]int{}
	for _, g := range groups {
		of := g.routes[0]
		middle := map[layer]string{layerTLS: "-tls", layerTCP: "-tcp"}[g.key.layer]
		n := count[of]
		count[of]++
		c.add(model.VirtualService, of, &model.Config{
			Key:         model.Key{Namespace: of.Namespace, Name: fmt.Sprintf("%s%s-%d-%s", of.Name, middle, n, suffix)},
			Annotations: map[string]string{semanticsAnnotation: "gateway", parentsAnnotation: strings.Join(g.parents, ",")},
			From:        sourceKeys(g.routes),
			Spec:        g.virtualService(),
		})
	}
}

func (g *group) virtualService() *networkingv1alpha3.VirtualService {
	out := &networkingv1alpha3.VirtualService{Hosts: []string{g.key.host}, Gateways: []string{g.key.gateway}}
	of, _, atGateway := strings.Cut(g.key.gateway, "/")
	switch {
	case atGateway: // the proxies of the Gateway are in its namespace
		out.ExportTo = []string{of}
	case g.key.consumer != "":
		out.ExportTo = []string{"."}
	}
	for _, e := range g.entries {
		switch {
		case e.route != nil:
			out.Http = append(out.Http, e.route)
		case e.tls != nil && len(out.Tls) == 0: // the oldest route wins the host
			out.Tls = append(out.Tls, e.tls)
		case e.tcp != nil && len(out.Tcp) == 0:
			out.Tcp = append(out.Tcp, e.tcp)
		}
	}
	return out
}
