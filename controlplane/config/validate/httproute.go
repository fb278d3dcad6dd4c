// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

func (c *checker) httpRoute(r *networkingv1alpha3.HTTPRoute, path string) {
	c.httpActions(r, path)
	for i, m := range r.GetMatch() {
		c.httpMatch(m, field.Index(path+".match", i))
	}
	c.routeDestinations(r.GetRoute(), path+".route")
	c.redirect(r.GetRedirect(), path+".redirect")
	if r.GetRedirect().GetPrefixRewrite() != "" {
		for i, m := range r.GetMatch() {
			if _, ok := m.GetUri().GetMatchType().(*networkingv1alpha3.StringMatch_Prefix); m.GetUri() != nil && !ok {
				c.errorf(field.Index(path+".match", i)+".uri", "has no prefix, which redirect.prefixRewrite replaces: write a prefix, or redirect.uri instead of prefixRewrite")
			}
		}
	}
	c.directResponse(r.GetDirectResponse(), path+".directResponse")
	if d := r.GetDelegate(); d != nil {
		const effect = "; as written, no object has it, and the route answers 503"
		if fault := SubdomainFault(d.GetName()); fault != "" {
			c.warnf(path+".delegate.name", "%s", fault+effect)
		}
		if ns := d.GetNamespace(); ns != "" && DNSLabelFault(ns) != "" {
			c.warnf(path+".delegate.namespace", "%s", DNSLabelFault(ns)+effect)
		}
	}
	c.duration(r.GetTimeout(), path+".timeout")
	c.retries(r.GetRetries(), path+".retries")
	c.headers(r.GetHeaders(), path+".headers")
	c.rewrite(r, path)
	c.mirrors(r, path)
	c.faultInjection(r.GetFault(), path+".fault")
	c.cors(r.GetCorsPolicy(), path+".corsPolicy")
}

// httpActions checks what a route does: exactly one thing.
func (c *checker) httpActions(r *networkingv1alpha3.HTTPRoute, path string) {
	var actions []string
	for _, a := range []struct {
		name string
		set  bool
	}{
		{"route", len(r.GetRoute()) > 0},
		{"redirect", r.GetRedirect() != nil},
		{"directResponse", r.GetDirectResponse() != nil},
		{"delegate", r.GetDelegate() != nil},
	} {
		if a.set {
			actions = append(actions, a.name)
		}
	}
	switch {
	case len(actions) == 0:
		c.errorf(path, "does nothing: write one of route, redirect, directResponse or delegate")
	case len(actions) > 1:
		c.errorf(path, "has %s: only one of them is allowed in a route", strings.Join(actions, " and "))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"fault", r.GetFault() != nil}, {"rewrite", r.GetRewrite() != nil}} {
		switch {
		case !f.set:
		case r.GetRedirect() != nil:
			c.errorf(path+"."+f.name, "and redirect exclude each other: remove one")
		case r.GetDirectResponse() != nil:
			c.warnf(path+"."+f.name, "has no effect beside directResponse: remove it")
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
		if _, prefix := f.match.GetMatchType().(*networkingv1alpha3.StringMatch_Prefix); prefix && f.name == "uri" && f.match.GetPrefix() == "" {
			c.warnf(path+".uri.prefix", "is empty and matches every path: write a prefix, or remove uri")
		} else if f.match != nil {
			c.stringMatch(f.match, path+"."+f.name)
		}
	}
	for _, f := range []struct {
		name    string
		matches map[string]*networkingv1alpha3.StringMatch
	}{{"headers", m.GetHeaders()}, {"withoutHeaders", m.GetWithoutHeaders()}} {
		for name, match := range field.Sorted(f.matches) {
			at := field.Key(path+"."+f.name, name)
			if !isClaim(name) {
				c.matchedHeader(name, at)
			}
			if f.name != "withoutHeaders" || match.GetRegex() != "*" { // any value, as in Istio
				c.presentOrMatch(match, at)
			}
		}
	}
	for name, match := range field.Sorted(m.GetQueryParams()) {
		if name == "" {
			c.errorf(path+".queryParams", "has an empty name: write the name of the parameter")
		}
		c.presentOrMatch(match, path+".queryParams["+name+"]")
	}
	c.optionalPort(m.GetPort(), path+".port")
	c.longLabels(m.GetSourceLabels(), path+".sourceLabels")
	c.gatewayNames(m.GetGateways(), path+".gateways")
	if ns := m.GetSourceNamespace(); ns != "" {
		c.fault(path+".sourceNamespace", labelNameFault(ns))
	}
}

// matchedHeader checks the name of a header that a match looks at.
func (c *checker) matchedHeader(name, path string) {
	switch name {
	case ":method", ":scheme", ":authority", ":path":
	case ":status":
		c.warnf(path, "names a pseudo-header that no request has: remove it")
	default:
		if strings.HasPrefix(name, ":") {
			c.errorf(path, "names a pseudo-header: use uri, method, authority or scheme instead")
			return
		}
		c.headerName(name, path)
	}
}

func (c *checker) headerName(name, path string) {
	switch {
	case name == "":
		c.errorf(path, "has an empty name: write the name of the header")
	case !headerName.MatchString(name):
		c.errorf(path, "is not a header name: write letters, digits and \"-\"")
	}
}

// mirrors checks where copies of the requests go.
func (c *checker) mirrors(r *networkingv1alpha3.HTTPRoute, path string) {
	//lint:ignore SA1019 users still write it
	old := r.GetMirrorPercent()
	if r.GetMirror() != nil {
		c.destination(r.GetMirror(), path+".mirror")
		if len(r.GetMirrors()) > 0 {
			c.errorf(path+".mirror", "and mirrors exclude each other: write all into mirrors")
		}
	} else {
		for _, f := range []struct {
			name string
			set  bool
		}{{"mirrorPercentage", r.GetMirrorPercentage() != nil}, {"mirrorPercent", old != nil}} {
			if f.set {
				c.warnf(path+"."+f.name, "has no effect without mirror: remove it")
			}
		}
	}
	c.percent(r.GetMirrorPercentage(), path+".mirrorPercentage.value")
	if old != nil {
		if old.GetValue() > 100 {
			c.errorf(path+".mirrorPercent", "is %d: a percentage is between 0 and 100", old.GetValue())
		}
		c.warnf(path+".mirrorPercent", "is the form of older versions: write mirrorPercentage")
	}
	for i, m := range r.GetMirrors() {
		at := field.Index(path+".mirrors", i)
		if m.GetDestination() == nil {
			c.errorf(at+".destination", "is missing: write the host that receives the copies")
		} else {
			c.destination(m.GetDestination(), at+".destination")
		}
		c.percent(m.GetPercentage(), at+".percentage.value")
	}
	if len(r.GetRoute()) == 0 && (r.GetMirror() != nil || len(r.GetMirrors()) > 0) {
		c.warnf(path, "copies requests but has no route, so nothing is copied: write route too, or remove the mirrors")
	}
}

// routeDestinations checks where requests go, and in which shares.
func (c *checker) routeDestinations(routes []*networkingv1alpha3.HTTPRouteDestination, path string) {
	weights := make([]int32, 0, len(routes))
	for i, d := range routes {
		at := field.Index(path, i)
		c.requiredDestination(d.GetDestination(), at+".destination")
		c.headers(d.GetHeaders(), at+".headers")
		weights = append(weights, d.GetWeight())
	}
	c.weights(weights, path)
}

// weights checks the shares of the destinations of a route.
func (c *checker) weights(weights []int32, path string) {
	var total int64
	for i, w := range weights {
		if w < 0 {
			c.errorf(field.Index(path, i)+".weight", "is %d: a weight is 0 or more", w)
		}
		total += int64(max(w, 0))
	}
	if len(weights) > 1 && total == 0 {
		c.errorf(path, "has %d destinations and no weight: write a weight for each", len(weights))
	}
	if total > 1<<32-1 {
		c.errorf(path, "has weights that sum up to %d: the sum may be at most 4294967295", total)
	}
}

func (c *checker) requiredDestination(d *networkingv1alpha3.Destination, path string) {
	if d == nil {
		c.errorf(path, "is missing: write the host that receives the requests")
		return
	}
	c.destination(d, path)
}

func (c *checker) destination(d *networkingv1alpha3.Destination, path string) {
	if d.GetHost() == "*" {
		c.errorf(path+".host", "is \"*\": write the host that receives the requests")
	} else {
		c.fault(path+".host", hostFault(d.GetHost(), anyWildcard))
	}
	if d.GetSubset() != "" {
		c.fault(path+".subset", labelNameFault(d.GetSubset()))
	}
	if d.GetPort() != nil {
		c.port(d.GetPort().GetNumber(), path+".port.number")
	}
}
