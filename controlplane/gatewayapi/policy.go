// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"fmt"
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// securing is a BackendTLSPolicy for one target.
type securing struct {
	object[gatewayv1.BackendTLSPolicySpec]
	section string // name of a port; empty means all
	service *model.Service
	roots   string // credential; empty means those of the proxy's machine
	// Faults; an empty reason means none.
	refused, unresolved fault
}

// systemRoots is the value of caCertificates for the root certificates of the proxy's machine.
const systemRoots = "system"

// readPolicies finds the policies of each service. A policy for a port takes precedence over one
// for all ports; among policies for the same port, the oldest wins.
func (c *converter) readPolicies() {
	for _, o := range specs[gatewayv1.BackendTLSPolicySpec](c, model.BackendTLSPolicy) {
		for _, target := range o.spec.TargetRefs {
			if target.Group != "" || target.Kind != kindService {
				continue
			}
			to := name{o.Namespace, string(target.Name)}
			p := &securing{object: o, section: string(deref(target.SectionName)), service: c.service(to)}
			if p.service == nil {
				continue
			}
			v := o.spec.Validation
			switch {
			case slices.ContainsFunc(c.secured[to], func(q *securing) bool { return q.section == p.section }):
				p.refused = fault{string(gatewayv1.PolicyReasonConflicted), "an older BackendTLSPolicy is for the same target"}
			case len(v.CACertificateRefs) > 0:
				p.roots, p.unresolved = c.policyRoots(o)
				if p.unresolved.is() {
					p.refused = fault{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), p.unresolved.message}
				}
			}
			c.secured[to] = append(c.secured[to], p)
		}
	}
}

// policyRoots returns the credential of the roots that a policy refers to.
func (c *converter) policyRoots(o object[gatewayv1.BackendTLSPolicySpec]) (credential string, unresolved fault) {
	const at, also = "spec.validation.caCertificateRefs", "; requests to the target receive 500 until then"
	refs := o.spec.Validation.CACertificateRefs
	if len(refs) > 1 {
		return "", fault{string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef), at + " has several entries: write all roots into one ConfigMap" + also}
	}
	if group, kind := string(refs[0].Group), string(refs[0].Kind); group != "" || kind != kindConfigMap {
		return "", fault{string(gatewayv1.BackendTLSPolicyReasonInvalidKind), fmt.Sprintf("%s[0] names a %s: write the kind ConfigMap and an empty group%s", at, kind, also)}
	}
	to := name{o.Namespace, string(refs[0].Name)}
	if err := c.rootsOf(to); err != nil {
		return "", fault{string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef), fmt.Sprintf("%s[0]: %v%s", at, err, also)}
	}
	return configMapCredential(to), fault{}
}

// rootsOf records that an object uses the roots in a ConfigMap, and returns their error.
func (c *converter) rootsOf(n name) error {
	c.result.configMaps[n] = true
	if c.in.Roots == nil {
		return fmt.Errorf("the ConfigMap %s/%s: the control plane reads no ConfigMaps (OUTRIGGER_CREDENTIALS)", n.namespace, n.name)
	}
	return c.in.Roots(n.namespace, n.name)
}

func configMapCredential(n name) string { return "configmap://" + n.namespace + "/" + n.name }

// policyOf returns the policy for a port of a service, or nil if there is none.
func (c *converter) policyOf(n name, s *model.Service, port uint32) *securing {
	var whole *securing
	for _, p := range c.secured[n] {
		switch {
		case p.refused.reason == string(gatewayv1.PolicyReasonConflicted):
		case p.section == "":
			whole = p
		case slices.ContainsFunc(s.Ports, func(q model.Port) bool { return q.Number == port && q.Name == p.section }):
			return p
		}
	}
	return whole
}

// insecure reports whether a policy cannot be enforced. The backend then receives no requests.
func (c *converter) insecure(n name, s *model.Service, port uint32) bool {
	p := c.policyOf(n, s, port)
	return p != nil && p.refused.is()
}

// writePolicies builds a DestinationRule for each service with policies, and sets the status of
// the policies for each Gateway.
func (c *converter) writePolicies() {
	status := map[model.Key]*gatewayv1.PolicyStatus{}
	for _, n := range slices.SortedFunc(maps.Keys(c.secured), compareNames) {
		list := c.secured[n]
		policy := &networkingv1alpha3.TrafficPolicy{}
		var from []*model.Config
		for _, p := range list {
			if status[p.Key] == nil {
				status[p.Key] = &gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{}}
				c.result.Status[p.Key] = status[p.Key]
			}
			p.say(status[p.Key], c)
			if p.refused.is() {
				continue
			}
			from = append(from, p.Config)
			tls := p.settings()
			if p.section == "" {
				policy.Tls = tls
				continue
			}
			for _, port := range p.service.Ports {
				if port.Name == p.section {
					policy.PortLevelSettings = append(policy.PortLevelSettings, &networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{
						Port: &networkingv1alpha3.PortSelector{Number: port.Number}, Tls: tls,
					})
				}
			}
		}
		if policy.Tls == nil && policy.PortLevelSettings == nil {
			continue
		}
		c.add(model.DestinationRule, list[0].Config, &model.Config{
			Key:         model.Key{Namespace: n.namespace, Name: list[0].Name + "-" + n.name + "-" + suffix},
			Annotations: map[string]string{semanticsAnnotation: "gateway", parentsAnnotation: fmt.Sprintf("BackendTLSPolicy/%s.%s", list[0].Name, n.namespace)},
			From:        sourceKeys(from),
			Spec:        &networkingv1alpha3.DestinationRule{Host: list[0].service.Hostname, TrafficPolicy: policy, ExportTo: []string{"*"}},
		})
	}
}

func (p *securing) settings() *networkingv1alpha3.ClientTLSSettings {
	v := p.spec.Validation
	out := &networkingv1alpha3.ClientTLSSettings{
		Mode: networkingv1alpha3.ClientTLSSettings_SIMPLE, Sni: string(v.Hostname), SubjectAltNames: []string{string(v.Hostname)}, CredentialName: p.roots,
	}
	if p.roots == "" {
		out.CaCertificates = systemRoots
	}
	if len(v.SubjectAltNames) > 0 {
		out.SubjectAltNames = nil
		for _, s := range v.SubjectAltNames {
			out.SubjectAltNames = append(out.SubjectAltNames, orText(string(s.URI), string(s.Hostname)))
		}
	}
	return out
}

// say sets the conditions of a policy for each Gateway with a route to its target.
func (p *securing) say(status *gatewayv1.PolicyStatus, c *converter) {
	accepted := condition(gatewayv1.PolicyConditionAccepted, true, gatewayv1.PolicyReasonAccepted, "the policy is accepted")
	if p.refused.is() {
		accepted = condition(gatewayv1.PolicyConditionAccepted, false, p.refused.reason, p.refused.message)
	}
	resolved := condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, true, gatewayv1.BackendTLSPolicyReasonResolvedRefs, "all references of the policy are resolved")
	if p.unresolved.is() {
		resolved = condition(gatewayv1.BackendTLSPolicyConditionResolvedRefs, false, p.unresolved.reason, p.unresolved.message)
	}
	conditions := []metav1.Condition{accepted, resolved}
	observe(conditions, p.Generation)
	for _, n := range slices.SortedFunc(maps.Keys(c.reached[p.service.Hostname]), compareNames) {
		group, kind, ns := gatewayv1.Group(groupGateway), gatewayv1.Kind(kindGateway), gatewayv1.Namespace(n.namespace)
		status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{
			AncestorRef:    gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &ns, Name: gatewayv1.ObjectName(n.name)},
			ControllerName: Controller, Conditions: slices.Clone(conditions),
		})
	}
}
