// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Proxies that use VHDS receive virtual hosts as separate resources, so that a changed route is
// one small resource. This includes the catch-all virtual host: Envoy accepts no request before it
// has at least one, and a domain that moves between virtual hosts does so in a single response.

// virtualHosts returns the VHDS resources of a proxy. Each has the name of its route configuration
// as a prefix, also in the message: Envoy uses the name in the message to remove a virtual host
// whose resource was removed.
func (g *Generator) virtualHosts(s *target) *xds.Set {
	p := g.planOf(s)
	if !s.proxy.VHDS || httpProxyPort(s) == 0 && p == &noPlan {
		return g.empty
	}
	key := setKey{typeURL: xds.TypeVirtualHost, outbound: s.outbound, route: s.routeKey(), inbound: inboundKey{port: httpProxyPort(s), modes: s.unknownKey()}, unknown: s.unknownBy(), settings: s.settings.RouteKey()}
	from := inputs{p, s.mesh.Services, s.mesh.VirtualServices, s.mesh.DestinationRules, s.mesh.Config}
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		b := g.newRouteBuilder(s, g.view(s))
		var resources []*xds.Resource
		for _, c := range b.configurations(p) {
			for _, vh := range c.hosts() {
				envoyconf.ApplyHosts([]*routev3.VirtualHost{vh.VirtualHost}, s.settings)
				vh.Name = c.fullName(true) + "/" + vh.GetName()
				r, err := g.table.Put(xds.TypeVirtualHost, vh.GetName(), vh.VirtualHost, vh.from)
				if err == nil {
					resources = append(resources, r)
					continue
				}
				problems := append(b.Problems, envoyconf.Left(model.Key{}, err))
				if prev != nil {
					return xds.NewSet(prev, prev.Resources, problems) // all of them: their domains depend on each other
				}
				return xds.NewSet(prev, nil, problems)
			}
		}
		return xds.NewSet(prev, resources, b.Problems)
	})
}
