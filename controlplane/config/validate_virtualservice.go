// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateVirtualService(c *checker, cfg *model.Config) {
	vs, ok := cfg.Spec.(*networkingv1alpha3.VirtualService)
	if !ok {
		return
	}
	c.virtualHosts(vs.GetHosts())
	c.gateways(vs.GetGateways(), "spec.gateways")
	c.exportTo(vs.GetExportTo(), "spec.exportTo")
	if len(vs.GetHttp()) == 0 && len(vs.GetTcp()) == 0 && len(vs.GetTls()) == 0 {
		c.errorf("spec.http", "is empty: write at least one route")
	}
	for i, r := range vs.GetHttp() {
		c.httpRoute(r, index("spec.http", i))
	}
}

// virtualHosts checks the hosts of a virtual service against each other.
func (c *checker) virtualHosts(hosts []string) {
	if len(hosts) == 0 {
		c.errorf("spec.hosts", "is empty: write the hosts whose requests the routes are for")
	}
	for i, h := range hosts {
		path := index("spec.hosts", i)
		if h == "*" {
			c.errorf(path, "is \"*\": it is not allowed inside the mesh; write the hosts, or a wildcard such as *.example.com")
			continue
		}
		c.fault(path, hostFault(h, true))
		for j, other := range hosts[:i] {
			if hostCovers(h, other) || hostCovers(other, h) {
				c.errorf(path, "is %s and overlaps with spec.hosts[%d], %s: remove one", quote(h), j, quote(other))
			}
		}
	}
}

// hostCovers reports whether host, perhaps a wildcard, includes another.
func hostCovers(host, other string) bool {
	if suffix, ok := strings.CutPrefix(host, "*"); ok && suffix != "" {
		return strings.HasSuffix(strings.TrimPrefix(other, "*"), suffix)
	}
	return strings.EqualFold(host, other)
}

func (c *checker) httpRoute(r *networkingv1alpha3.HTTPRoute, path string) {
	var actions []string
	if len(r.GetRoute()) > 0 {
		actions = append(actions, "route")
	}
	if r.GetRedirect() != nil {
		actions = append(actions, "redirect")
	}
	if r.GetDirectResponse() != nil {
		actions = append(actions, "directResponse")
	}
	switch {
	case len(actions) == 0 && r.GetDelegate() == nil:
		c.errorf(path, "does nothing: write one of route, redirect or directResponse")
	case len(actions) > 1:
		c.errorf(path, "has %s: only one of them is allowed in a route", strings.Join(actions, " and "))
	}
	if r.GetRewrite() != nil && len(r.GetRoute()) == 0 {
		c.errorf(path+".rewrite", "has no effect without route: remove it")
	}
	for i, m := range r.GetMatch() {
		c.httpMatch(m, index(path+".match", i))
	}
	c.routeDestinations(r.GetRoute(), path+".route")
	c.redirect(r.GetRedirect(), path+".redirect")
	c.directResponse(r.GetDirectResponse(), path+".directResponse")
	c.durationOrZero(r.GetTimeout(), path+".timeout")
	c.retries(r.GetRetries(), path+".retries")
	c.headers(r.GetHeaders(), path+".headers")
	c.rewrite(r, path)
	c.mirrors(r, path)
}

// mirrors checks where copies of the requests go.
func (c *checker) mirrors(r *networkingv1alpha3.HTTPRoute, path string) {
	if r.GetMirror() != nil {
		c.destination(r.GetMirror(), path+".mirror")
		if len(r.GetMirrors()) > 0 {
			c.errorf(path+".mirror", "and mirrors exclude each other: write all into mirrors")
		}
	} else if r.GetMirrorPercentage() != nil {
		c.errorf(path+".mirrorPercentage", "has no effect without mirror: remove it")
	}
	c.percent(r.GetMirrorPercentage(), path+".mirrorPercentage.value")
	for i, m := range r.GetMirrors() {
		at := index(path+".mirrors", i)
		if m.GetDestination() == nil {
			c.errorf(at+".destination", "is missing: write the host that gets the copies")
		} else {
			c.destination(m.GetDestination(), at+".destination")
		}
		c.percent(m.GetPercentage(), at+".percentage.value")
	}
	if len(r.GetRoute()) == 0 && (r.GetMirror() != nil || len(r.GetMirrors()) > 0) {
		c.errorf(path, "copies requests and has no route: write route too, or remove the mirrors")
	}
}

func (c *checker) percent(p *networkingv1alpha3.Percent, path string) {
	if v := p.GetValue(); v < 0 || v > 100 || v > 0 && v < 0.0001 {
		c.errorf(path, "is %v: a percentage is 0, or between 0.0001 and 100", v)
	}
}

// gateways allows the sidecars only.
func (c *checker) gateways(names []string, path string) {
	for i, g := range names {
		if g != "mesh" {
			c.errorf(index(path, i), "is %s: this version serves no gateways; write mesh or remove gateways", quote(g))
		}
	}
}

func (c *checker) httpMatch(m *networkingv1alpha3.HTTPMatchRequest, path string) {
	for _, f := range []struct {
		name  string
		match *networkingv1alpha3.StringMatch
	}{
		{"uri", m.GetUri()}, {"scheme", m.GetScheme()}, {"method", m.GetMethod()}, {"authority", m.GetAuthority()},
	} {
		if f.match != nil {
			c.stringMatch(f.match, path+"."+f.name)
		}
	}
	for name, match := range sorted(m.GetHeaders()) {
		c.headerMatch(name, match, path+".headers["+name+"]")
	}
	for name, match := range sorted(m.GetWithoutHeaders()) {
		c.headerMatch(name, match, path+".withoutHeaders["+name+"]")
	}
	for name, match := range sorted(m.GetQueryParams()) {
		if name == "" {
			c.errorf(path+".queryParams", "has an empty name: write the name of the parameter")
		}
		c.presentOrMatch(match, path+".queryParams["+name+"]")
	}
	c.optionalPort(m.GetPort(), path+".port")
	c.labels(m.GetSourceLabels(), path+".sourceLabels")
	c.gateways(m.GetGateways(), path+".gateways")
	if ns := m.GetSourceNamespace(); ns != "" {
		c.fault(path+".sourceNamespace", dnsLabelFault(ns))
	}
}

func (c *checker) headerMatch(name string, m *networkingv1alpha3.StringMatch, path string) {
	c.headerName(name, path)
	c.presentOrMatch(m, path)
}

// presentOrMatch checks a match that, when empty, asks only that something
// is there.
func (c *checker) presentOrMatch(m *networkingv1alpha3.StringMatch, path string) {
	if m.GetMatchType() != nil {
		c.stringMatch(m, path)
	}
}

func (c *checker) headerName(name, path string) {
	switch {
	case name == "":
		c.errorf(path, "has an empty name: write the name of the header")
	case strings.HasPrefix(name, ":"):
		c.errorf(path, "names a pseudo header: use uri, method, authority or scheme instead")
	case strings.HasPrefix(name, "@request.auth.claims"):
		c.errorf(path, "matches a claim: claims are not supported by this version; remove it")
	case !headerName.MatchString(name):
		c.errorf(path, "is no header name: write letters, digits and \"-\"")
	}
}

func (c *checker) routeDestinations(routes []*networkingv1alpha3.HTTPRouteDestination, path string) {
	var total int64
	for i, d := range routes {
		at := index(path, i)
		if d.GetDestination() == nil {
			c.errorf(at+".destination", "is missing: write the host that gets the requests")
		} else {
			c.destination(d.GetDestination(), at+".destination")
		}
		if d.GetWeight() < 0 {
			c.errorf(at+".weight", "is %d: a weight is 0 or more", d.GetWeight())
		}
		total += int64(max(d.GetWeight(), 0))
		c.headers(d.GetHeaders(), at+".headers")
	}
	if len(routes) > 1 && total == 0 {
		c.errorf(path, "has %d destinations and no weight: write a weight for each", len(routes))
	}
	if total > 1<<32-1 {
		c.errorf(path, "has weights that sum up to %d: the sum may be 4294967295 at most", total)
	}
}

func (c *checker) destination(d *networkingv1alpha3.Destination, path string) {
	c.fault(path+".host", hostFault(d.GetHost(), false))
	if d.GetSubset() != "" {
		c.fault(path+".subset", dnsLabelFault(d.GetSubset()))
	}
	if d.GetPort() != nil {
		c.port(d.GetPort().GetNumber(), path+".port.number")
	}
}
