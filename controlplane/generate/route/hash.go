// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// hashPolicies returns the hash policies of the targets' DestinationRules without duplicates.
// Policies that Envoy would reject are omitted; the cluster then handles the requests like those
// without a hash.
func (b *Builder) hashPolicies(targets ...target) []*routev3.RouteAction_HashPolicy {
	var out []*routev3.RouteAction_HashPolicy
	for _, t := range targets {
		if t.service == nil {
			continue
		}
		rule := b.Mesh.DestinationRules.For(t.service.ServiceKey, b.Proxy.Namespace, b.Proxy.Labels)
		policy := hashPolicy(cluster.PolicyOf(rule, t.subset, t.port).Balancer.GetConsistentHash())
		if policy == nil || check(policy) != nil {
			continue
		}
		b.sources.AddConfigs(rule.Objects()...)
		if slices.ContainsFunc(out, func(p *routev3.RouteAction_HashPolicy) bool { return proto.Equal(p, policy) }) {
			continue
		}
		out = append(out, policy)
	}
	return out
}

func hashPolicy(in *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB) *routev3.RouteAction_HashPolicy {
	switch key := in.GetHashKey().(type) {
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key.HttpHeaderName},
		}}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{Name: key.HttpCookie.GetName(), Path: key.HttpCookie.GetPath()}
		if ttl := key.HttpCookie.GetTtl(); ttl != nil {
			cookie.Ttl = durationpb.New(0) // session cookie
			if d, ok := envoyconf.Positive(ttl); ok {
				cookie.Ttl = d
			}
		}
		for _, a := range key.HttpCookie.GetAttributes() {
			cookie.Attributes = append(cookie.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
		}
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !key.UseSourceIp {
			return nil
		}
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: key.HttpQueryParameterName},
		}}
	}
	return nil
}
