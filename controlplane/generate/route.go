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

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// maxBody bounds the body of a direct response.
const maxBody = 1 << 20

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
		b := &routeBuilder{scope: s, view: g.view(s)}
		config := httpProxyConfig(httpProxyRoute)
		config.VirtualHosts = b.httpProxy()
		r, err := g.table.put(TypeRoute, config.GetName(), config)
		if err != nil {
			problems := append(b.problems, left(model.Key{}, err))
			if prev != nil {
				return newSet(prev, prev.Resources, problems) // the last good routes
			}
			return newSet(prev, nil, problems)
		}
		return newSet(prev, []*Resource{r}, b.problems)
	})
}

// routeBuilder makes the routes of one scope.
type routeBuilder struct {
	scope    *scope
	view     *view
	problems []model.Problem
}

// virtualHost is a host and port that gets routes of its own.
type virtualHost struct {
	host    string
	port    uint32
	service *model.Service           // nil for hosts that only a VirtualService names
	rules   *snapshot.VirtualService // may be nil
	domains []string
}

// httpProxyConfig is the configuration around the routes of the HTTP proxy.
func httpProxyConfig(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxBody),
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
				out = append(out, &virtualHost{host: svc.Hostname, port: port.Number, service: svc, rules: vs})
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
			out = append(out, &virtualHost{host: host, port: 80, rules: vs})
		}
	}
	slices.SortStableFunc(out, func(x, y *virtualHost) int {
		if c := strings.Compare(x.host, y.host); c != 0 {
			return c
		}
		return int(x.port) - int(y.port)
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
	vh := &routev3.VirtualHost{Name: hostPort(h.host, h.port), Domains: h.domains, IncludeRequestAttemptCount: true}
	if h.rules != nil {
		vh.Routes = b.rules(h)
	}
	if len(vh.Routes) == 0 {
		if h.service == nil {
			return nil
		}
		vh.Routes = []*routev3.Route{b.defaultRoute(h)}
	}
	err := vh.Validate()
	if err == nil && !utf8.ValidString(h.host) {
		err = fmt.Errorf("the host %q is not UTF-8", h.host)
	}
	if err != nil {
		object := model.Key{}
		switch {
		case h.service != nil:
			object = h.service.Source
		case h.rules != nil:
			object = h.rules.Config.Key
		}
		b.problems = append(b.problems, left(object, err))
		return nil
	}
	return vh
}

// defaultRoute sends everything to the service.
func (b *routeBuilder) defaultRoute(h *virtualHost) *routev3.Route {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: outboundName(h.port, "", h.host)},
		RetryPolicy:      retryPolicy(nil, b.scope.mesh.Config),
	}
	b.applyTimeout(action, nil, h)
	return &routev3.Route{
		Name:      "default",
		Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Decorator: &routev3.Decorator{Operation: hostPort(h.host, h.port) + "/*"},
		Action:    &routev3.Route_Route{Route: action},
	}
}

// applyTimeout sets the timeout of a route; nil and 0 mean none. A gRPC
// client's own deadline holds too, but not beyond the timeout.
func (b *routeBuilder) applyTimeout(action *routev3.RouteAction, timeout *durationpb.Duration, h *virtualHost) {
	action.Timeout = durationpb.New(0)
	if d, ok := positive(timeout); ok {
		action.Timeout = d
	}
	if h.service != nil && slices.ContainsFunc(h.service.Ports, func(p model.Port) bool { return p.Number == h.port && p.Protocol.IsHTTP2() }) {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: action.Timeout}
	}
}

// blockAll answers for hosts that nobody knows.
func blockAll() *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name:    "block_all",
		Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Name:   "block_all",
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: respond(502, unknownHostBody),
		}},
	}
}

// inboundRoutes send everything to the application.
func inboundRoutes(port uint32) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:             inboundName(port),
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    "inbound|http|" + number(port),
			Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Decorator: &routev3.Decorator{Operation: "inbound:" + number(port) + "/*"},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier:  &routev3.RouteAction_Cluster{Cluster: inboundName(port)},
					Timeout:           durationpb.New(0),
					MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{GrpcTimeoutHeaderMax: durationpb.New(0)},
				}},
			}},
		}},
	}
}
