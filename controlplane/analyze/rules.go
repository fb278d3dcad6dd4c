// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// topologyLabels are prefixes of labels that a control plane adds to endpoints: where the pods of manifests
// will run is not known. It is never written to.
var topologyLabels = [...]string{"topology.istio.io/", "topology.kubernetes.io/", "kubernetes.io/hostname"}

// destinationRules checks the references and the TLS settings of DestinationRules.
func (a *analysis) destinationRules() {
	each(a, model.DestinationRule, func(c *model.Config, spec *networkingv1alpha3.DestinationRule) {
		a.verifies(c, spec)
		host := a.Mesh.ResolveHost(spec.GetHost(), c.Namespace)
		if strings.HasPrefix(host, "*") || !a.servicesKnown() {
			return
		}
		svc := a.Mesh.Services.ForHost(host, c.Namespace)
		if svc == nil {
			a.report("IST0174", c, fmt.Sprintf("spec.host: no service has the host %q, so the rule has no effect.", host), "Correct the host, or add a Service or ServiceEntry.")
			return
		}
		a.rulePorts(c, spec, svc)
		a.subsets(c, spec, svc)
		a.mutualTLS(c, spec, svc)
		a.originated(c, spec, svc)
	})
}

// wildcardRules checks the TLS modes of DestinationRules for wildcard hosts, each with the first service that
// refuses them.
func (a *analysis) wildcardRules() {
	if !a.servicesKnown() {
		return
	}
	done := map[*snapshot.DestinationRule]bool{}
	for _, svc := range a.Mesh.Services.Sorted {
		a.steps++
		rule := a.Mesh.DestinationRules.For(svc.ServiceKey, svc.Namespace, nil)
		if rule == nil || !strings.HasPrefix(rule.Host, "*") || done[rule] {
			continue
		}
		for _, c := range rule.From {
			if spec := specOf[networkingv1alpha3.DestinationRule](c); spec != nil && a.mutualTLS(c, spec, svc) {
				done[rule] = true
			}
		}
	}
}

// subsets finds subsets whose labels no endpoint has.
func (a *analysis) subsets(c *model.Config, spec *networkingv1alpha3.DestinationRule, svc *model.Service) {
	endpoints := a.endpoints(svc)
	if len(endpoints) == 0 {
		return // scaled to zero: the labels may be correct
	}
	for i, s := range spec.GetSubsets() {
		labels := map[string]string{}
		for k, v := range s.GetLabels() {
			if a.Complete || !slices.ContainsFunc(topologyLabels[:], func(p string) bool { return strings.HasPrefix(k, p) }) {
				labels[k] = v
			}
		}
		if !slices.ContainsFunc(endpoints, func(ep *model.Endpoint) bool { a.steps++; return model.Selects(labels, ep.Labels) }) {
			a.report("IST0173", c, fmt.Sprintf("spec.subsets[%d]: no endpoint of %q has the labels %s, so requests to the subset %q are answered with 503.", i, svc.Hostname, labelText(s.GetLabels()), s.GetName()),
				"Correct the labels, or those of the workloads.")
		}
	}
}

// rulePorts finds settings for ports that the service does not have.
func (a *analysis) rulePorts(c *model.Config, spec *networkingv1alpha3.DestinationRule, svc *model.Service) {
	check := func(at string, p *networkingv1alpha3.TrafficPolicy) {
		for i, s := range p.GetPortLevelSettings() {
			if n := s.GetPort().GetNumber(); n != 0 && !hasPort(svc, n) {
				a.report("OUT0007", c, fmt.Sprintf("%s.portLevelSettings[%d].port.number: the service %q has no port %d, so the settings have no effect.", at, i, svc.Hostname, n),
					fmt.Sprintf("Write one of its ports (%s).", portsOf(svc)))
			}
		}
	}
	check("spec.trafficPolicy", spec.GetTrafficPolicy())
	for i, s := range spec.GetSubsets() {
		check(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy())
	}
}

// verifies finds settings that originate TLS and do not verify the server. Without caCertificates, the
// roots of the system verify it.
func (a *analysis) verifies(c *model.Config, spec *networkingv1alpha3.DestinationRule) {
	unverified := func(tls *networkingv1alpha3.ClientTLSSettings) bool {
		return snapshot.OriginatesTLS(tls) && tls.GetInsecureSkipVerify().GetValue()
	}
	const cure = "Write caCertificates instead, or neither: then the roots of the system verify it."
	check := func(at string, policy *networkingv1alpha3.TrafficPolicy) {
		if unverified(policy.GetTls()) {
			a.report("IST0128", c, fmt.Sprintf("%s.tls: with insecureSkipVerify, no certificate of %q is verified.", at, spec.GetHost()), cure)
		}
		for i, p := range policy.GetPortLevelSettings() {
			if unverified(p.GetTls()) {
				a.report("IST0129", c, fmt.Sprintf("%s.portLevelSettings[%d].tls: with insecureSkipVerify, no certificate of port %d of %q is verified.", at, i, p.GetPort().GetNumber(), spec.GetHost()), cure)
			}
		}
	}
	check("spec.trafficPolicy", spec.GetTrafficPolicy())
	for i, s := range spec.GetSubsets() {
		check(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy())
	}
}

// mutualTLS compares the TLS mode of a rule with the modes of the workloads of a service, and reports whether
// they differ.
func (a *analysis) mutualTLS(c *model.Config, spec *networkingv1alpha3.DestinationRule, svc *model.Service) bool {
	if svc.External {
		return false
	}
	if a.policyConflict(c, "spec.trafficPolicy", spec.GetTrafficPolicy(), nil, svc) {
		return true
	}
	for i, s := range spec.GetSubsets() {
		if s.GetTrafficPolicy() != nil && a.policyConflict(c, fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), s.GetTrafficPolicy(), s.GetLabels(), svc) {
			return true
		}
	}
	return false
}

// policyConflict reports a TLS mode of a traffic policy that the workloads with some labels refuse.
func (a *analysis) policyConflict(c *model.Config, at string, policy *networkingv1alpha3.TrafficPolicy, labels map[string]string, svc *model.Service) bool {
	modes := map[uint32]*networkingv1alpha3.ClientTLSSettings{}
	for _, p := range svc.Ports {
		modes[p.Number] = policy.GetTls()
	}
	for _, p := range policy.GetPortLevelSettings() {
		if n := p.GetPort().GetNumber(); n != 0 { // the settings of a port replace the others
			modes[n] = p.GetTls()
		}
	}
	for _, ep := range a.endpoints(svc) {
		if a.steps++; !model.Selects(labels, ep.Labels) {
			continue
		}
		tls := modes[ep.ServicePort]
		if tls == nil {
			continue // chosen by what the workload accepts
		}
		mode := a.Mesh.PeerAuthentications.Mode(ep.Namespace, ep.Labels, ep.Port)
		mutual := tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL
		var accepts string
		switch {
		case mode == snapshot.MutualTLSStrict && !mutual:
			accepts = "accept only mutual TLS of the mesh"
		case mode == snapshot.MutualTLSDisabled && mutual:
			accepts = "accept only plaintext"
		default:
			continue
		}
		by := "the default"
		if of := a.Mesh.PeerAuthentications.Of(ep.Namespace, ep.Labels); len(of) > 0 {
			by = "the PeerAuthentication " + nameOf(of[len(of)-1])
		}
		a.report("IST0113", c, fmt.Sprintf("%s: the TLS mode for port %d of %q is %s, but by %s its workloads %s, so connections fail.", at, ep.ServicePort, svc.Hostname, tls.GetMode(), by, accepts),
			"Remove the TLS mode, so that clients use what the workloads accept, or change the PeerAuthentication.")
		return true
	}
	return false
}
