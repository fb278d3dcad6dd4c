// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// httpProxyRoute is the name of the routes of the HTTP proxy listener.
	httpProxyRoute = "http_proxy"
	// httpProxyVHDS is their name for proxies with VHDS. It is another one, so
	// that a listener that goes over from one to the other waits for what it
	// goes to: under one name Envoy would mix them.
	httpProxyVHDS = "http_proxy.vhds"
)

// unknownHostBody is what a request for a host that nobody knows gets.
const unknownHostBody = "no service of the mesh answers for this host and port: " +
	"check the host, the port and the namespace of the request, or declare the service with a ServiceEntry\n"

// routes gives the RDS resources of a proxy: those of its HTTP proxy.
func (g *Generator) routes(s *scope) *Set {
	if httpProxyPort(s) == 0 {
		return g.empty
	}
	if s.proxy.VHDS {
		return g.routesWithVHDS(s)
	}
	key := setKey{typeURL: TypeRoute, outbound: s.outbound, route: s.routeKey()}
	from := sources{s.mesh.Services, s.mesh.VirtualServices, s.mesh.Config}
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *Set) *Set {
		b := newRouteBuilder(s, g.view(s))
		config := httpProxyConfig(httpProxyRoute)
		config.VirtualHosts = b.httpProxy()
		r, err := g.table.put(TypeRoute, config.GetName(), config)
		if err != nil {
			problems := append(b.Problems, parts.Left(model.Key{}, err))
			if prev != nil {
				return newSet(prev, prev.Resources, problems) // the last good routes
			}
			return newSet(prev, nil, problems)
		}
		return newSet(prev, []*Resource{r}, b.Problems)
	})
}

// routeBuilder makes the routes of one scope.
type routeBuilder struct {
	route.Builder
	scope *scope
	view  *view
}

func newRouteBuilder(s *scope, v *view) *routeBuilder {
	return &routeBuilder{scope: s, view: v, Builder: route.Builder{
		Mesh: s.mesh, Proxy: s.proxy, Gateway: route.Sidecars, Service: func(host string) *model.Service { return v.byHost[host] },
	}}
}

// virtualHost is a host and port that gets routes of its own.
type virtualHost struct {
	route.Host
	domains []string
}

// httpProxyConfig is the configuration around the routes of the HTTP proxy.
func httpProxyConfig(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(route.MaxBody),
	}
}

// httpProxy makes the routes of the HTTP proxy: one virtual host for each
// service and port, and an answer for everything else; sorted by name, but for
// that answer.
func (b *routeBuilder) httpProxy() []*routev3.VirtualHost {
	hosts := b.hosts()
	claimDomains(hosts, b.scope.domain())
	var out []*routev3.VirtualHost
	all := false
	for _, h := range hosts {
		if len(h.domains) == 0 {
			continue
		}
		if vh := b.build(h); vh != nil {
			out = append(out, vh)
			all = all || slices.Contains(h.domains, "*")
		}
	}
	slices.SortFunc(out, func(x, y *routev3.VirtualHost) int { return strings.Compare(x.Name, y.Name) })
	if !all {
		out = append(out, blockAll())
	}
	return out
}

// hosts gives what gets a virtual host, sorted, with unique names: services,
// then hosts for which there is a VirtualService but no service.
func (b *routeBuilder) hosts() []*virtualHost {
	var out []*virtualHost
	namespace, rules := b.scope.proxy.Namespace, b.scope.mesh.VirtualServices
	for _, svc := range b.view.services {
		vs := rules.For(svc.Hostname, namespace)
		seen := make(map[uint32]bool)
		for _, port := range svc.Ports {
			if !seen[port.Number] {
				seen[port.Number] = true
				out = append(out, &virtualHost{Host: route.Host{Name: svc.Hostname, Port: port.Number, Service: svc, Rules: vs}})
			}
		}
	}
	seen := make(map[string]bool)
	for _, vs := range rules.All {
		for _, host := range vs.Hosts {
			if seen[host] || !vs.VisibleFrom(namespace) || len(vs.Spec.GetHttp()) == 0 || b.servedBy(host) {
				continue
			}
			seen[host] = true
			out = append(out, &virtualHost{Host: route.Host{Name: host, Port: 80, Rules: vs}})
		}
	}
	slices.SortStableFunc(out, func(x, y *virtualHost) int {
		if c := strings.Compare(x.Name, y.Name); c != 0 {
			return c
		}
		return int(x.Port) - int(y.Port)
	})
	return out
}

// servedBy reports whether a service has the host, or falls under it.
func (b *routeBuilder) servedBy(host string) bool {
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild {
		return b.view.byHost[host] != nil
	}
	return slices.ContainsFunc(b.view.services, func(s *model.Service) bool { return strings.HasSuffix(s.Hostname, suffix) })
}

// build makes a virtual host; nil when no valid one can be made.
func (b *routeBuilder) build(h *virtualHost) *routev3.VirtualHost {
	vh := &routev3.VirtualHost{Name: parts.HostPort(h.Name, h.Port), Domains: h.domains, IncludeRequestAttemptCount: true}
	if h.Rules != nil {
		vh.Routes = b.Routes(&h.Host)
	}
	if len(vh.Routes) == 0 {
		if h.Service == nil {
			return nil
		}
		vh.Routes = []*routev3.Route{b.Default(&h.Host)}
	}
	err := vh.Validate()
	if err == nil && !utf8.ValidString(h.Name) {
		err = fmt.Errorf("the host %q is not UTF-8", h.Name)
	}
	if err != nil {
		object := model.Key{}
		switch {
		case h.Service != nil:
			object = h.Service.Source
		case h.Rules != nil:
			object = h.Rules.Config.Key
		}
		b.Problems = append(b.Problems, parts.Left(object, err))
		return nil
	}
	return vh
}

// blockAll answers for hosts that nobody knows.
func blockAll() *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name:    "block_all",
		Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Name:   "block_all",
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: route.Respond(502, unknownHostBody),
		}},
	}
}

// inboundRoutes send everything to the application.
func inboundRoutes(port uint32) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:             parts.InboundName(port),
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "inbound|http|" + parts.Number(port),
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Decorator: &routev3.Decorator{Operation: "inbound:" + parts.Number(port) + "/*"},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: parts.InboundName(port)},
					Timeout:           durationpb.New(0),
					MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: durationpb.New(0)},
				}},
			}},
		}},
	}
}
