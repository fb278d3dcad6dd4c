// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// nowhere is a host that never has a cluster: requests to it receive 500, and connections are
// closed.
const nowhere = "invalid-backend.invalid"

// backendRef is a reference in a rule of any kind of route.
type backendRef struct {
	gatewayv1.BackendRef
	filters []gatewayv1.HTTPRouteFilter
}

// destinations converts the backends of a rule. It returns nil if no backend accepts requests, so
// that all requests receive 500.
func (c *converter) destinations(r *route, refs []backendRef, at string) []*networkingv1alpha3.HTTPRouteDestination {
	var out []*networkingv1alpha3.HTTPRouteDestination
	valid := false
	for i, ref := range refs {
		weight := orElse(ref.Weight, 1)
		to, ok := c.destination(r, ref.BackendObjectReference, fmt.Sprintf("%s[%d]", at, i))
		if ok {
			f := c.filters(r, ref.filters, fmt.Sprintf("%s[%d].filters", at, i))
			if f.invalid || f.redirect != nil || f.rewrite != nil || f.mirrors != nil || f.cors != nil {
				if !f.invalid {
					r.unresolve(gatewayv1.RouteReasonInvalidKind, "%s[%d].filters: only filters of headers are supported here; move the others to the rule", at, i)
				}
				to, ok = astray(), false
			} else {
				valid = valid || weight > 0
				out = append(out, &networkingv1alpha3.HTTPRouteDestination{Destination: to, Weight: weight, Headers: f.headers.orNil()})
				continue
			}
		}
		if weight > 0 {
			out = append(out, &networkingv1alpha3.HTTPRouteDestination{Destination: to, Weight: weight})
		}
	}
	if !valid {
		return nil
	}
	// The weight of a single destination is irrelevant.
	if out = slices.DeleteFunc(out, func(d *networkingv1alpha3.HTTPRouteDestination) bool { return d.Weight == 0 }); len(out) == 1 {
		out[0].Weight = 0
	}
	return out
}

// streams converts the backends of a rule for connections.
func (c *converter) streams(r *route, refs []gatewayv1.BackendRef, at string) []*networkingv1alpha3.RouteDestination {
	var out []*networkingv1alpha3.RouteDestination
	for i, ref := range refs {
		to, _ := c.destination(r, ref.BackendObjectReference, fmt.Sprintf("%s[%d]", at, i))
		if w := orElse(ref.Weight, 1); w > 0 {
			out = append(out, &networkingv1alpha3.RouteDestination{Destination: to, Weight: w})
		}
	}
	switch len(out) {
	case 0:
		out = []*networkingv1alpha3.RouteDestination{{Destination: astray()}}
	case 1:
		out[0].Weight = 0
	}
	return out
}

func astray() *networkingv1alpha3.Destination {
	return &networkingv1alpha3.Destination{Host: nowhere, Port: &networkingv1alpha3.PortSelector{Number: 80}}
}

// destination resolves one reference. It returns false if the reference is invalid; the route then
// contains the reason.
func (c *converter) destination(r *route, ref gatewayv1.BackendObjectReference, at string) (*networkingv1alpha3.Destination, bool) {
	to := name{string(orElse(ref.Namespace, gatewayv1.Namespace(r.Namespace))), string(ref.Name)}
	group, kind := string(deref(ref.Group)), string(orElse(ref.Kind, kindService))
	if !r.mesh && !c.allowed(reference{kind: r.Kind, namespace: r.Namespace, group: group, toKind: kind, to: to}) {
		r.unresolve(gatewayv1.RouteReasonRefNotPermitted, "%s: no ReferenceGrant of namespace %s allows a %s of namespace %s the %s %s", at, to.namespace, r.Kind, r.Namespace, kind, to.name)
		return astray(), false
	}
	var s *model.Service
	switch {
	case group == "" && kind == kindService:
		s = c.service(to)
	case group == groupMCS && kind == "ServiceImport":
		if s = c.service(to); c.in.Service != nil {
			s = cmp.Or(c.in.Service(to.namespace, to.name+model.ClusterSetSuffix), s)
		}
	case group == "networking.istio.io" && kind == "Hostname":
		s = c.entry(to.name)
		if s == nil { // a service of the cluster that is referenced by its host
			n, host := c.serviceNamed(to.name, r.Namespace)
			if host == to.name {
				s = c.service(n)
			}
		}
	default:
		r.unresolve(gatewayv1.RouteReasonInvalidKind, "%s: the kind %s/%s is not supported: write a Service, a ServiceImport, or a Hostname of networking.istio.io", at, group, kind)
		return astray(), false
	}
	port := uint32(deref(ref.Port))
	if s != nil {
		if c.reached[s.Hostname] == nil {
			c.reached[s.Hostname] = map[name]bool{}
		}
		for _, g := range r.gateways {
			c.reached[s.Hostname][g] = true
		}
	}
	switch {
	case s == nil:
		r.unresolve(gatewayv1.RouteReasonBackendNotFound, "%s: there is no %s %s/%s", at, kind, to.namespace, to.name)
		return astray(), false
	case port == 0:
		r.unresolve(gatewayv1.RouteReasonUnsupportedValue, "%s: port is missing: a %s requires one", at, kind)
		return astray(), false
	case !slices.ContainsFunc(s.Ports, func(p model.Port) bool { return p.Number == port }):
		r.unresolve(gatewayv1.RouteReasonBackendNotFound, "%s: the %s %s/%s has no port %d", at, kind, to.namespace, to.name, port)
		return astray(), false
	case c.insecure(to, s, port):
		return astray(), false // the status of the policy contains the reason
	}
	return &networkingv1alpha3.Destination{Host: s.Hostname, Port: &networkingv1alpha3.PortSelector{Number: port}}, true
}
