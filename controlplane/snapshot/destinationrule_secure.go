// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// ofGatewayAPI reports whether a DestinationRule was converted from a BackendTLSPolicy.
func ofGatewayAPI(obj *model.Config) bool {
	return obj.Annotations[semanticsAnnotation] == gatewaySemantics
}

// secure applies the TLS settings of each BackendTLSPolicy to the existing rules for its host. Such
// a policy applies to all requests (Gateway API, GEP-1897), even if an older rule exists for other
// settings.
func (d *DestinationRules) secure() {
	for host, obj := range d.secured {
		spec, _ := obj.Spec.(*networkingv1alpha3.DestinationRule)
		for _, ns := range d.namespaces {
			for _, rule := range ns.byHost[host] {
				rule.securedBy = obj
				rule.Policy = withTLSOf(rule.Policy, spec.GetTrafficPolicy())
				for i, s := range rule.Subsets {
					if s.GetTrafficPolicy() != nil {
						s, _ = proto.Clone(s).(*networkingv1alpha3.Subset)
						s.TrafficPolicy = withTLSOf(s.TrafficPolicy, spec.GetTrafficPolicy())
						rule.Subsets[i], rule.byName[s.GetName()] = s, s
					}
				}
			}
		}
	}
}

// withTLSOf returns a copy of policy, which may be nil, with the TLS settings of secure, for each
// port and for all ports.
func withTLSOf(policy, secure *networkingv1alpha3.TrafficPolicy) *networkingv1alpha3.TrafficPolicy {
	if policy == nil {
		return secure
	}
	out, _ := proto.Clone(policy).(*networkingv1alpha3.TrafficPolicy)
	if tls := secure.GetTls(); tls != nil {
		out.Tls = tls
		for _, at := range out.GetPortLevelSettings() {
			at.Tls = tls
		}
	}
	for _, port := range secure.GetPortLevelSettings() {
		set := false
		for _, at := range out.GetPortLevelSettings() {
			if at.GetPort().GetNumber() == port.GetPort().GetNumber() {
				at.Tls, set = port.GetTls(), true
			}
		}
		if !set { // the settings of a port replace the general ones completely
			out.PortLevelSettings = append(out.PortLevelSettings, &networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{
				Port: port.GetPort(), Tls: port.GetTls(),
				LoadBalancer: out.GetLoadBalancer(), ConnectionPool: out.GetConnectionPool(), OutlierDetection: out.GetOutlierDetection(),
			})
		}
	}
	return out
}
