// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// collectProblems sets the problems of the snapshot. What the objects say of
// each other is looked at again only when one of the indexes changed.
func (m *Mesh) collectProblems(old *Mesh) {
	m.referenceProblems = old.referenceProblems
	if m.Services != old.Services || m.VirtualServices != old.VirtualServices || m.DestinationRules != old.DestinationRules || !maps.Equal(m.gateways, old.gateways) {
		c := &checker{mesh: m}
		for _, obj := range m.VirtualServices.objects() {
			c.virtualService(obj)
		}
		for _, obj := range m.DestinationRules.objects() {
			c.destinationRule(obj)
		}
		m.referenceProblems = c.found
	}
	m.Problems = slices.Concat(m.registry.Problems, m.referenceProblems, m.Trust.problems)
}

// checker gathers what is wrong between the objects of one snapshot.
type checker struct {
	mesh  *Mesh
	found []model.Problem
}

func (c *checker) report(obj *model.Config, format string, args ...any) {
	c.found = append(c.found, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
}

// dangling reports that an object names one that does not exist.
func (c *checker) dangling(obj *model.Config, format string, args ...any) {
	c.report(obj, format, args...)
	c.found[len(c.found)-1].Dangling = true
}

func (c *checker) virtualService(obj *model.Config) {
	spec, ok := obj.Spec.(*networkingv1alpha3.VirtualService)
	if !ok {
		return
	}
	c.gateways(obj, spec)
	if !forMesh(spec.GetGateways()) {
		return
	}
	c.duplicateHosts(obj, spec)
	if len(spec.GetTls())+len(spec.GetTcp()) > 0 {
		c.report(obj, "spec.tls and spec.tcp are not served yet and have no effect; use spec.http")
	}
	for i, route := range spec.GetHttp() {
		at := fmt.Sprintf("spec.http[%d]", i)
		for j, dest := range route.GetRoute() {
			c.destination(obj, fmt.Sprintf("%s.route[%d].destination", at, j), dest.GetDestination())
		}
		if route.GetMirror() != nil {
			c.destination(obj, at+".mirror", route.GetMirror())
		}
		for j, mirror := range route.GetMirrors() {
			c.destination(obj, fmt.Sprintf("%s.mirrors[%d].destination", at, j), mirror.GetDestination())
		}
		if route.GetFault() != nil {
			c.report(obj, "%s.fault is not served yet: requests are routed without the fault; remove it", at)
		}
		if route.GetCorsPolicy() != nil {
			c.report(obj, "%s.corsPolicy is not served yet: requests are routed without it; remove it", at)
		}
		if route.GetDelegate() != nil {
			c.report(obj, "%s.delegate is not served yet: the route answers 503; write the routes of the delegate here", at)
		}
	}
}

// duplicateHosts reports hosts that an older object already rules.
func (c *checker) duplicateHosts(obj *model.Config, spec *networkingv1alpha3.VirtualService) {
	for _, h := range spec.GetHosts() {
		host := c.mesh.ResolveHost(h, obj.Namespace)
		for _, other := range c.mesh.VirtualServices.byHost[host] {
			if other.Config.Key == obj.Key {
				break
			}
			if other.VisibleFrom(obj.Namespace) {
				c.report(obj, "spec.hosts: %q is already ruled by the older VirtualService %s/%s, which wins; merge the two objects",
					h, other.Config.Namespace, other.Config.Name)
				break
			}
		}
	}
}

// destination checks that host, port and subset of a destination exist.
func (c *checker) destination(obj *model.Config, at string, dest *networkingv1alpha3.Destination) {
	host := c.mesh.ResolveHost(dest.GetHost(), obj.Namespace)
	svc := c.mesh.Services.ForHost(host, obj.Namespace)
	if svc == nil {
		c.dangling(obj, "%s.host: no service has the host %q: requests that go there are answered with 503; correct the host or add a ServiceEntry", at, host)
		return
	}
	if number := dest.GetPort().GetNumber(); number != 0 &&
		!slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == number }) {
		c.dangling(obj, "%s.port.number: the service %q has no port %d: requests that go there are answered with 503; use one of its ports", at, host, number)
	}
	subset := dest.GetSubset()
	if subset == "" {
		return
	}
	if c.mesh.DestinationRules.For(svc.ServiceKey, obj.Namespace, nil).Subset(subset) == nil {
		c.dangling(obj, "%s.subset: no DestinationRule for %q has the subset %q: requests that go there are answered with 503; add the subset to a DestinationRule",
			at, host, subset)
	}
}

func (c *checker) destinationRule(obj *model.Config) {
	spec, ok := obj.Spec.(*networkingv1alpha3.DestinationRule)
	if !ok {
		return
	}
	host := c.mesh.ResolveHost(spec.GetHost(), obj.Namespace)
	if !isWildcard(host) && c.mesh.Services.ForHost(host, obj.Namespace) == nil {
		c.dangling(obj, "spec.host: no service has the host %q, so the rule has no effect; correct the host or add a ServiceEntry", host)
	}
	c.duplicateSubsets(obj, spec, host)
	c.policy(obj, "spec.trafficPolicy", spec.GetTrafficPolicy())
	for i, s := range spec.GetSubsets() {
		c.policy(obj, fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy())
	}
}

// duplicateSubsets reports subsets that an older rule of the same host defines.
func (c *checker) duplicateSubsets(obj *model.Config, spec *networkingv1alpha3.DestinationRule, host string) {
	for _, rule := range c.mesh.DestinationRules.withHost(obj.Namespace, host) {
		position := slices.IndexFunc(rule.From, func(o *model.Config) bool { return o.Key == obj.Key })
		for _, older := range rule.From[:max(position, 0)] {
			names := older.Spec.(*networkingv1alpha3.DestinationRule).GetSubsets()
			for i, s := range spec.GetSubsets() {
				if slices.ContainsFunc(names, func(o *networkingv1alpha3.Subset) bool { return o.GetName() == s.GetName() }) {
					c.report(obj, "spec.subsets[%d].name: the subset %q of %q is already defined by the older DestinationRule %s, which wins; remove one of them",
						i, s.GetName(), host, older.Name)
				}
			}
		}
	}
}

// policy reports settings that nothing is made of yet.
func (c *checker) policy(obj *model.Config, at string, policy *networkingv1alpha3.TrafficPolicy) {
	c.portPolicy(obj, at, policy.GetLoadBalancer(), policy.GetTls())
	for i, p := range policy.GetPortLevelSettings() {
		c.portPolicy(obj, fmt.Sprintf("%s.portLevelSettings[%d]", at, i), p.GetLoadBalancer(), p.GetTls())
	}
	if policy.GetTunnel() != nil {
		c.report(obj, "%s.tunnel is not served yet and has no effect; remove it", at)
	}
	if policy.GetProxyProtocol() != nil {
		c.report(obj, "%s.proxyProtocol is not served yet and has no effect; remove it", at)
	}
}

func (c *checker) portPolicy(obj *model.Config, at string, lb *networkingv1alpha3.LoadBalancerSettings, tls *networkingv1alpha3.ClientTLSSettings) {
	if lb.GetConsistentHash() != nil {
		c.report(obj, "%s.loadBalancer.consistentHash is not served yet: the default balancing is used; use loadBalancer.simple", at)
	}
	if lb.GetSimple() == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH {
		c.report(obj, "%s.loadBalancer.simple: PASSTHROUGH has no effect without interception: the default balancing is used", at)
	}
	switch tls.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		c.report(obj, "%s.tls.mode: %s is not served yet: requests to the host are answered with 503 and never sent as plaintext; use DISABLE or ISTIO_MUTUAL",
			at, tls.GetMode())
	case networkingv1alpha3.ClientTLSSettings_DISABLE, networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
	}
}
