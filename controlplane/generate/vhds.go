// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Proxies with VHDS get what others have in one route configuration in parts,
// so that a changed route is one small resource. All virtual hosts are such
// parts, also the one for everything else: Envoy takes no request before it has
// one, and a domain that goes from one to another does so in one response.

// httpProxyRoutes is the name of the routes of the HTTP proxy.
func httpProxyRoutes(s *scope) string {
	if s.proxy.VHDS {
		return httpProxyVHDS
	}
	return httpProxyRoute
}

// routesWithVHDS gives the RDS resources of a proxy whose virtual hosts come
// apart: they are the same for all.
func (g *Generator) routesWithVHDS(s *scope) *Set {
	return g.sets.get(setKey{typeURL: TypeRoute, vhds: true}, s.mesh.Sequence, sources{}, func(prev *Set) *Set {
		config := httpProxyConfig(httpProxyVHDS)
		config.Vhds = &routev3.Vhds{ConfigSource: parts.OverADS()}
		r, err := g.table.put(TypeRoute, config.GetName(), config)
		if err != nil {
			return newSet(prev, nil, []model.Problem{parts.Left(model.Key{}, err)})
		}
		return newSet(prev, []*Resource{r}, nil)
	})
}

// virtualHosts gives the VHDS resources of a proxy. Each is named after its
// route configuration, in the message, too: Envoy removes by the name in the
// message what was told to be gone by that of the resource.
func (g *Generator) virtualHosts(s *scope) *Set {
	if !s.proxy.VHDS || httpProxyPort(s) == 0 {
		return g.empty
	}
	key := setKey{typeURL: TypeVirtualHost, outbound: s.outbound, route: s.routeKey()}
	from := sources{s.mesh.Services, s.mesh.VirtualServices, s.mesh.Config}
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *Set) *Set {
		b := newRouteBuilder(s, g.view(s))
		var resources []*Resource
		for _, vh := range b.httpProxy() {
			vh.Name = httpProxyVHDS + "/" + vh.GetName()
			r, err := g.table.put(TypeVirtualHost, vh.GetName(), vh)
			if err == nil {
				resources = append(resources, r)
				continue
			}
			problems := append(b.Problems, parts.Left(model.Key{}, err))
			if prev != nil {
				return newSet(prev, prev.Resources, problems) // the last good ones: domains go with each other
			}
			return newSet(prev, nil, problems)
		}
		return newSet(prev, resources, b.Problems)
	})
}
