// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// workloadPort is a port of a service, with the number that it has at a workload.
type workloadPort struct {
	service *model.Service
	port    model.Port
	target  uint32
}

// portsOf returns the ports of a workload that services lead to.
func (a *analysis) portsOf(w *Workload) []workloadPort {
	if a.ports == nil {
		a.ports = map[string][]workloadPort{}
		for _, svc := range a.Mesh.Services.Sorted {
			for _, ep := range a.endpoints(svc) {
				key := ep.Namespace + "/" + ep.Workload
				i := slices.IndexFunc(svc.Ports, func(p model.Port) bool { return p.Number == ep.ServicePort })
				if i < 0 {
					continue
				}
				if one := (workloadPort{svc, svc.Ports[i], ep.Port}); !slices.Contains(a.ports[key], one) {
					a.ports[key] = append(a.ports[key], one)
				}
			}
		}
	}
	return a.ports[w.Namespace+"/"+w.Name]
}

// servicePort returns the port of the workloads behind a port of their services, if one was written
// where the port of the workload belongs.
func (a *analysis) servicePort(workloads []*Workload, port uint32) (target uint32, mistaken bool) {
	for _, w := range workloads {
		for _, p := range a.portsOf(w) {
			a.steps++
			if p.target == port {
				return 0, false
			}
			if p.port.Number == port {
				target, mistaken = p.target, true
			}
		}
	}
	return target, mistaken
}

const workloadPortCure = "Write the port of the workload."

// neverMatches finds rules whose conditions no request of the selected workloads meets.
func (a *analysis) neverMatches(c *model.Config, spec *securityv1beta1.AuthorizationPolicy, workloads []*Workload) {
	if len(workloads) == 0 {
		return
	}
	for i, r := range spec.GetRules() {
		at := fmt.Sprintf("spec.rules[%d]", i)
		for j, t := range r.GetTo() {
			for _, text := range t.GetOperation().GetPorts() {
				port, err := strconv.ParseUint(text, 10, 16)
				if err != nil {
					continue // it is another finding
				}
				if target, mistaken := a.servicePort(workloads, uint32(port)); mistaken {
					a.report("OUT0018", c, fmt.Sprintf("%s.to[%d].operation.ports: %d is the port of a Service; the workloads listen on %d, so the rule never matches.", at, j, port, target), workloadPortCure)
				}
			}
		}
		if len(r.GetFrom()) == 0 {
			continue
		}
		if !slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool { return !needsIdentity(f.GetSource()) }) && !a.provesIdentities(workloads) {
			a.report("OUT0018", c, at+".from names identities of clients, but mutual TLS is off for the workloads, so the rule never matches.", "Make the PeerAuthentication PERMISSIVE or STRICT, or write ipBlocks.")
		}
		if !slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool { return len(f.GetSource().GetRequestPrincipals()) == 0 }) && !a.verifiesTokens(workloads) {
			a.report("OUT0018", c, at+".from names identities of tokens, but no RequestAuthentication verifies tokens for the workloads, so the rule never matches.", "Add a RequestAuthentication for the workloads.")
		}
	}
}

// needsIdentity reports whether a source is one with a certificate only.
func needsIdentity(s *securityv1beta1.Source) bool {
	return len(s.GetPrincipals())+len(s.GetNamespaces())+len(s.GetServiceAccounts())+len(s.GetTrustDomains()) > 0
}

// provesIdentities reports whether a port of the workloads accepts mutual TLS.
func (a *analysis) provesIdentities(workloads []*Workload) bool {
	return slices.ContainsFunc(workloads, func(w *Workload) bool {
		ports := a.portsOf(w)
		if len(ports) == 0 {
			ports = []workloadPort{{}}
		}
		for _, p := range ports {
			a.steps++
			if a.Mesh.PeerAuthentications.Mode(w.Namespace, w.Labels, p.target) != snapshot.MutualTLSDisabled {
				return true
			}
		}
		return false
	})
}

// verifiesTokens reports whether a RequestAuthentication is for one of the workloads.
func (a *analysis) verifiesTokens(workloads []*Workload) bool {
	return slices.ContainsFunc(workloads, func(w *Workload) bool {
		a.steps++
		return len(a.Mesh.RequestAuthentications.For(w.Namespace, w.Labels, nil)) > 0
	})
}

// portModes finds modes for ports of Services, where those of workloads belong.
func (a *analysis) portModes() {
	each(a, model.PeerAuthentication, func(c *model.Config, spec *securityv1beta1.PeerAuthentication) {
		if len(spec.GetPortLevelMtls()) == 0 {
			return
		}
		workloads := a.selected(c.Namespace, spec.GetSelector().GetMatchLabels())
		for _, port := range slices.Sorted(maps.Keys(spec.GetPortLevelMtls())) {
			if target, mistaken := a.servicePort(workloads, port); mistaken {
				a.report("OUT0018", c, fmt.Sprintf("spec.portLevelMtls[%d] is the port of a Service; the workloads listen on %d, so the mode has no effect.", port, target), workloadPortCure)
			}
		}
	})
}

// unrequired finds RequestAuthentications for workloads that need no token.
func (a *analysis) unrequired() {
	if a.Partial {
		return
	}
	byClaims := false // at gateways routes can require them
	each(a, model.VirtualService, func(_ *model.Config, spec *networkingv1alpha3.VirtualService) {
		for _, r := range spec.GetHttp() {
			for _, m := range r.GetMatch() {
				for name := range m.GetHeaders() {
					byClaims = byClaims || strings.HasPrefix(name, "@request.auth.claims")
				}
			}
		}
	})
	each(a, model.RequestAuthentication, func(c *model.Config, spec *securityv1beta1.RequestAuthentication) {
		if selector, selects := SelectorOf(c); selects && !byClaims {
			for _, w := range a.selected(a.scope(c), selector) {
				a.steps++
				if !slices.ContainsFunc(a.Mesh.AuthorizationPolicies.For(w.Namespace, w.Labels, nil), func(p *snapshot.AuthorizationPolicy) bool { return !p.DryRun && asksForTokens(p.Spec) }) {
					a.report("OUT0019", c, fmt.Sprintf("Requests without a token are admitted to %s/%s: the object refuses invalid tokens only.", w.Namespace, w.Name), "Add an AuthorizationPolicy with requestPrincipals, unless this is meant.")
					return
				}
			}
		}
	})
}

// asksForTokens reports whether a policy looks at the identities of tokens.
func asksForTokens(spec *securityv1beta1.AuthorizationPolicy) bool {
	return slices.ContainsFunc(spec.GetRules(), func(r *securityv1beta1.Rule) bool {
		return slices.ContainsFunc(r.GetFrom(), func(f *securityv1beta1.Rule_From) bool {
			return len(f.GetSource().GetRequestPrincipals())+len(f.GetSource().GetNotRequestPrincipals()) > 0
		}) || slices.ContainsFunc(r.GetWhen(), func(w *securityv1beta1.Condition) bool { return strings.HasPrefix(w.GetKey(), "request.auth.") })
	})
}
