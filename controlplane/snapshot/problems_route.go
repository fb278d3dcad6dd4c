// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// warn reports a setting that its author may not have intended.
func (c *checker) warn(obj *model.Config, format string, args ...any) {
	c.report(obj, format, args...)
	c.found[len(c.found)-1].Warning = true
}

// httpRoutes checks the HTTP routes of an object, whether it is a delegate or not, and the merged
// routes.
func (c *checker) httpRoutes(obj *model.Config, spec *networkingv1alpha3.VirtualService) {
	for i, route := range spec.GetHttp() {
		at := fmt.Sprintf("spec.http[%d]", i)
		total := int64(0)
		for j, dest := range route.GetRoute() {
			c.destination(obj, fmt.Sprintf("%s.route[%d].destination", at, j), dest.GetDestination())
			total += int64(max(dest.GetWeight(), 0))
		}
		if len(route.GetRoute()) > 1 && total == 0 {
			c.report(obj, "%s.route: the weights of all destinations are 0: requests of the route are answered with 503; write a weight for each", at)
		}
		if route.GetMirror() != nil {
			c.destination(obj, at+".mirror", route.GetMirror())
		}
		for j, mirror := range route.GetMirrors() {
			c.destination(obj, fmt.Sprintf("%s.mirrors[%d].destination", at, j), mirror.GetDestination())
		}
		c.faultShare(obj, at+".fault", route.GetFault())
	}
	if len(spec.GetHosts()) == 0 {
		if !c.mesh.VirtualServices.lends(obj) {
			c.warn(obj, "spec.hosts is empty, so the object is a delegate, but no VirtualService names it as one: it has no effect; write hosts, or name it in spec.http[].delegate of another one")
		}
		return
	}
	if vs := c.mesh.VirtualServices.byKey[obj.Key]; vs != nil {
		c.found = append(c.found, vs.problems...)
		c.neverReached(vs)
	}
}

// faultShare reports faults that affect no request because their percentage is not set.
func (c *checker) faultShare(obj *model.Config, at string, fault *networkingv1alpha3.HTTPFaultInjection) {
	//lint:ignore SA1019 users still write it
	old := fault.GetDelay().GetPercent()
	if d := fault.GetDelay(); d != nil && d.GetPercentage() == nil && old == 0 {
		c.warn(obj, "%s.delay.percentage is not set, so no request is delayed; write percentage: {value: 100}", at)
	}
	if a := fault.GetAbort(); a != nil && a.GetPercentage() == nil {
		c.warn(obj, "%s.abort.percentage is not set, so no request is aborted; write percentage: {value: 100}", at)
	}
}

// neverReached reports routes that follow a route of a delegate that matches every request. Routes
// of a single object are checked during validation.
func (c *checker) neverReached(vs *VirtualService) {
	routes := vs.Spec.GetHttp()
	for i, r := range routes {
		from := vs.Origin(i)
		if len(r.GetMatch()) > 0 || i+1 == len(routes) {
			continue
		}
		next := vs.Origin(i + 1)
		if from.Config.Key == vs.Config.Key && next.Config.Key == vs.Config.Key {
			return
		}
		c.warn(vs.Config, "spec.http: spec.http[%d] of the VirtualService %s/%s has no match and takes every request, so spec.http[%d] of %s/%s and later routes are never reached; write it last",
			from.Rule, from.Config.Namespace, from.Config.Name, next.Rule, next.Config.Namespace, next.Config.Name)
		return
	}
}
