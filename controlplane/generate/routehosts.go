// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// virtualHost is a host and port with its own routes.
type virtualHost struct {
	route.Host
	domains []string
	tunnel  bool // CONNECT requests are served
}

// virtualHosts builds the virtual hosts that have a domain, sorted by name, followed by rest, the
// catch-all.
func (b *routeBuilder) virtualHosts(hosts []*virtualHost, rest madeHost) []madeHost {
	var out []madeHost
	all := false
	for _, h := range hosts {
		if len(h.domains) == 0 {
			continue
		}
		if vh := b.build(h); vh.VirtualHost != nil {
			out = append(out, vh)
			all = all || slices.Contains(h.domains, "*")
		}
	}
	slices.SortFunc(out, func(x, y madeHost) int { return strings.Compare(x.GetName(), y.GetName()) })
	if !all {
		out = append(out, rest)
	}
	return out
}

// hosts returns the hosts that need a virtual host, sorted, with unique names: services, then
// hosts of VirtualServices that have no service.
func (b *routeBuilder) hosts() []*virtualHost {
	var out []*virtualHost
	namespace, rules := b.target.proxy.Namespace, b.target.mesh.VirtualServices
	for _, svc := range b.view.services {
		vs := rules.ForSidecar(svc.Hostname, namespace, b.target.sidecar)
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
			if seen[host] || !vs.VisibleFrom(namespace) || !vs.ImportedBy(b.target.sidecar) || len(vs.Spec.GetHttp()) == 0 || b.servedBy(host) {
				continue
			}
			seen[host] = true
			// If there are several, the one with the narrower scope wins, then the older one.
			of := cmp.Or(rules.ForSidecar(host, namespace, b.target.sidecar), vs)
			out = append(out, &virtualHost{Host: route.Host{Name: host, Port: 80, Rules: of}})
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

// servedBy reports whether the host is that of a service, or matches its wildcard.
func (b *routeBuilder) servedBy(host string) bool {
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild {
		return b.view.byHost[host] != nil
	}
	return slices.ContainsFunc(b.view.services, func(s *model.Service) bool { return strings.HasSuffix(s.Hostname, suffix) })
}

// build builds a virtual host. The result has no message if the virtual host would be invalid.
func (b *routeBuilder) build(h *virtualHost) madeHost {
	b.TakeSources() // discard the sources of earlier hosts
	vh := &routev3.VirtualHost{Name: envoyconf.HostPort(h.Name, h.Port), Domains: h.domains, IncludeRequestAttemptCount: true}
	if h.Rules != nil {
		vh.Routes = b.Routes(&h.Host)
	}
	check := route.CheckHost
	if len(vh.Routes) == 0 {
		if h.Service == nil {
			return madeHost{}
		}
		vh.Routes = []*routev3.Route{b.Default(&h.Host)}
		check = (*routev3.VirtualHost).Validate
	}
	if h.tunnel {
		if r := b.Tunnel(&h.Host); r != nil {
			vh.Routes = append([]*routev3.Route{r}, vh.Routes...)
		}
	}
	told := b.hidePeer(vh)
	err := check(vh)
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
		b.Problems = append(b.Problems, envoyconf.Left(object, err))
		return madeHost{}
	}
	from := append(b.TakeSources(), told...)
	if h.Service != nil {
		from.Add(h.Service.Source)
	}
	return madeHost{vh, from}
}
