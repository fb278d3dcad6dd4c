// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// meshGateway is the name under which a VirtualService means the sidecars.
const meshGateway = "mesh"

// snatPrefix begins the server names that gateways of one mesh use between
// each other: outbound_.PORT_.SUBSET_.HOST.
const snatPrefix = "outbound_."

// snatFault checks a server name that begins with snatPrefix.
func snatFault(name string) string {
	parts := strings.SplitN(name, "_", 4)
	if len(parts) == 4 && strings.ContainsAny(parts[1], "0123456789") && hostFault(strings.Trim(parts[3], "."), anyWildcard) == "" {
		return ""
	}
	return "is " + field.Quote(name) + ": write outbound_.PORT_.SUBSET_.HOST, as in outbound_.443_._.api.example.com"
}

func validateVirtualService(c *checker, cfg *model.Config) {
	vs, ok := cfg.Spec.(*networkingv1alpha3.VirtualService)
	if !ok {
		return
	}
	sidecars := len(vs.GetGateways()) == 0 || slices.Contains(vs.GetGateways(), meshGateway)
	delegate := len(vs.GetHosts()) == 0
	if delegate {
		c.delegate(vs)
	}
	hosts := newHostSet(vs.GetHosts())
	c.virtualHosts(vs.GetHosts(), hosts, sidecars)
	routes := len(vs.GetTls()) + len(vs.GetTcp())
	for _, r := range vs.GetHttp() {
		routes += max(1, len(r.GetMatch()))
	}
	c.atMost(len(vs.GetHosts()), maxHosts, "spec.hosts")
	c.product(maxRoutes, "spec.hosts and the routes", "routes", len(vs.GetHosts()), routes)
	c.gatewayNames(vs.GetGateways(), "spec.gateways")
	c.exportTo(cfg.Namespace, vs.GetExportTo(), "spec.exportTo")
	c.notToNone(vs.GetExportTo(), "spec.exportTo")
	if len(vs.GetHttp()) == 0 && len(vs.GetTcp()) == 0 && len(vs.GetTls()) == 0 {
		c.errorf("spec.http", "is empty, as tls and tcp are: write at least one route")
	}
	for i, r := range vs.GetHttp() {
		path := field.Index("spec.http", i)
		c.httpRoute(r, path)
		if delegate && r.GetDelegate() != nil {
			c.errorf(path+".delegate", "is in an object that is a delegate itself, because it has no hosts: write the routes here")
		}
		if sidecars {
			c.claimMatches(r, path)
		}
	}
	for i, r := range vs.GetTls() {
		c.tlsRoute(r, hosts, field.Index("spec.tls", i))
	}
	for i, r := range vs.GetTcp() {
		c.tcpRoute(r, field.Index("spec.tcp", i))
	}
	c.shadowedRoutes(vs)
}

// delegate checks an object without hosts, which only lends its routes to
// others.
func (c *checker) delegate(vs *networkingv1alpha3.VirtualService) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"gateways", len(vs.GetGateways()) > 0}, {"tls", len(vs.GetTls()) > 0}, {"tcp", len(vs.GetTcp()) > 0}} {
		if f.set {
			c.errorf("spec."+f.name, "is not allowed without hosts: an object without hosts is a delegate, which has only http; write hosts, or remove %s", f.name)
		}
	}
}

// virtualHosts checks the hosts of a virtual service against each other.
func (c *checker) virtualHosts(hosts []string, set *hostSet, sidecars bool) {
	if sidecars && slices.Contains(hosts, "*") {
		// It is refused below, and says nothing about the others.
		set = newHostSet(hosts)
		delete(set.wildcards, "")
	}
	overlaps := set.overlaps(hosts)
	for i, h := range hosts {
		path := field.Index("spec.hosts", i)
		if h == "*" && sidecars {
			c.errorf(path, "is \"*\": it is not allowed inside the mesh; write the hosts, or a wildcard such as *.example.com")
			continue
		}
		if sidecars || !strings.HasPrefix(h, snatPrefix) {
			c.fault(path, hostOrIPFault(h, anyWildcard))
		} else {
			c.fault(path, snatFault(h))
		}
		if j := overlaps[i]; j >= 0 {
			c.errorf(path, "is %s and overlaps with spec.hosts[%d], %s: remove one", field.Quote(h), j, field.Quote(hosts[j]))
		}
	}
}

// gatewayNames checks the gateways that routes are for.
func (c *checker) gatewayNames(names []string, path string) {
	for i, g := range names {
		at := field.Index(path, i)
		if g == meshGateway {
			continue
		}
		if namespace, name, ok := strings.Cut(g, "/"); ok {
			if namespace != "." && labelNameFault(namespace) != "" || labelNameFault(name) != "" {
				c.errorf(at, "is %s: write namespace/name, or the name of a gateway of the same namespace", field.Quote(g))
			}
		} else if fault := hostFault(g, noWildcard); fault != "" {
			c.errorf(at, "is %s: write namespace/name, or the name of a gateway of the same namespace", field.Quote(g))
		} else if parts := strings.Split(g, "."); len(parts) > 1 {
			c.warnf(at, "is %s, the form of older versions: write %q", field.Quote(g), parts[1]+"/"+parts[0])
		}
	}
}

// claimMatches refuses matches of claims where no gateway has read a token.
func (c *checker) claimMatches(r *networkingv1alpha3.HTTPRoute, path string) {
	for i, m := range r.GetMatch() {
		for _, f := range []struct {
			name    string
			matches map[string]*networkingv1alpha3.StringMatch
		}{{"headers", m.GetHeaders()}, {"withoutHeaders", m.GetWithoutHeaders()}} {
			for name := range field.Sorted(f.matches) {
				if isClaim(name) {
					c.errorf(field.Key(field.Index(path+".match", i)+"."+f.name, name),
						"matches a claim of a token, which only gateways can: name the gateways in spec.gateways, without mesh, or remove it")
				}
			}
		}
	}
}

// isClaim reports whether a header name stands for a claim of a token.
func isClaim(name string) bool {
	const prefix = "@request.auth.claims"
	if len(name) <= len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
		return false
	}
	return name[len(prefix)] == '.' || name[len(prefix)] == '['
}
