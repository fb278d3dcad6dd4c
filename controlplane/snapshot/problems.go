// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// collectProblems sets the problems of the snapshot. It checks the references between objects again
// only if one of the indexes changed.
func (m *Mesh) collectProblems(old *Mesh) {
	m.referenceProblems = old.referenceProblems
	if m.Services != old.Services || m.VirtualServices != old.VirtualServices || m.DestinationRules != old.DestinationRules || m.Gateways != old.Gateways ||
		m.AuthorizationPolicies != old.AuthorizationPolicies || m.Telemetries != old.Telemetries || m.Config != old.Config || m.formatProblem != old.formatProblem {
		c := &checker{mesh: m}
		for _, obj := range m.VirtualServices.objects() {
			c.virtualService(obj)
		}
		for _, obj := range m.DestinationRules.objects() {
			c.destinationRule(obj)
		}
		for _, obj := range m.AuthorizationPolicies.objects() {
			c.authorizer(obj)
		}
		for _, obj := range m.Telemetries.objects() {
			c.recorders(obj)
		}
		c.meshRecorders()
		m.referenceProblems = c.found
	}
	m.subsets = newSubsetIndex(old.subsets, m)
	m.Problems = model.LimitProblems(slices.Concat(
		m.registry.Problems, m.referenceProblems, m.subsets.problems, m.WasmPlugins.problems,
		m.AuthorizationPolicies.problems, m.RequestAuthentications.problems, m.Telemetries.problems, m.EnvoyFilters.problems, m.Trust.problems,
	))
}

// checker collects the problems of references between the objects of one snapshot.
type checker struct {
	mesh  *Mesh
	found []model.Problem
}

func (c *checker) report(obj *model.Config, format string, args ...any) {
	c.found = append(c.found, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
}

// dangling reports that an object refers to one that does not exist.
func (c *checker) dangling(obj *model.Config, format string, args ...any) {
	c.report(obj, format, args...)
	c.found[len(c.found)-1].Dangling = true
}

func (c *checker) virtualService(obj *model.Config) {
	spec, ok := obj.Spec.(*networkingv1alpha3.VirtualService)
	if !ok {
		return
	}
	c.httpRoutes(obj, spec)
	c.gateways(obj, spec)
	if !forMesh(spec.GetGateways()) {
		return
	}
	c.duplicateHosts(obj, spec)
}

// duplicateHosts reports the hosts that an older object already defines.
func (c *checker) duplicateHosts(obj *model.Config, spec *networkingv1alpha3.VirtualService) {
	for _, h := range spec.GetHosts() {
		host := c.mesh.ResolveHost(h, obj.Namespace)
		own := c.mesh.VirtualServices.byKey[obj.Key]
		for _, other := range c.mesh.VirtualServices.byHost[host] {
			if other == own || own == nil {
				break
			}
			if slices.ContainsFunc(append([]string{obj.Namespace}, own.exportTo...), func(namespace string) bool {
				return namespace != "*" && namespace != "." && own.VisibleFrom(namespace) && other.VisibleFrom(namespace) && other.Reach(namespace) <= own.Reach(namespace)
			}) {
				c.report(obj, "spec.hosts: %q is already in the older VirtualService %s/%s, which wins; merge the two objects",
					h, other.Config.Namespace, other.Config.Name)
				c.found[len(c.found)-1].Code = model.DuplicateHost
				break
			}
		}
	}
}

// destination checks that the host, port and subset of a destination exist.
func (c *checker) destination(obj *model.Config, at string, dest *networkingv1alpha3.Destination) {
	host := c.mesh.ResolveHost(dest.GetHost(), obj.Namespace)
	svc := c.mesh.Services.ForHost(host, obj.Namespace)
	if svc == nil {
		c.dangling(obj, "%s.host: no service has the host %q: requests to it are answered with 503; correct the host or add a ServiceEntry", at, host)
		return
	}
	if number := dest.GetPort().GetNumber(); number != 0 &&
		!slices.ContainsFunc(svc.Ports, func(p model.Port) bool { return p.Number == number }) {
		c.dangling(obj, "%s.port.number: the service %q has no port %d: requests to it are answered with 503; use one of its ports", at, host, number)
	}
	subset := dest.GetSubset()
	if subset == "" {
		return
	}
	if c.mesh.DestinationRules.For(svc.ServiceKey, obj.Namespace, nil).Subset(subset) == nil {
		c.dangling(obj, "%s.subset: no DestinationRule for %q has the subset %q: requests to it are answered with 503; add the subset to a DestinationRule",
			at, host, subset)
	}
}
