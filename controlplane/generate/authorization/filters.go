// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"fmt"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Policies are the AuthorizationPolicies of a workload. The zero value has none.
type Policies struct {
	list []*snapshot.AuthorizationPolicy
	// Key is equal for workloads with the same policies. It is empty without policies.
	Key string
}

// Of returns the policies of a workload.
func Of(mesh *snapshot.Mesh, namespace string, labels map[string]string) Policies {
	p := Policies{list: mesh.AuthorizationPolicies.For(namespace, labels)}
	var key strings.Builder
	for _, policy := range p.list {
		key.WriteString(policy.Key)
	}
	p.Key = key.String()
	return p
}

// Filters are the filters that enforce policies.
type Filters struct {
	// HTTP and Stream are the filters for requests and for connections whose requests are not read,
	// in the order in which they decide.
	HTTP   []*hcmv3.HttpFilter
	Stream []*listenerv3.Filter
	// Library are the filters for requests to an application without an Envoy. A gRPC library
	// requires each to have a name of its own.
	Library []*hcmv3.HttpFilter
	// Sources are the objects of the policies.
	Sources xds.Sources
}

// step is one of the decisions about a request, in their order.
type step struct {
	action securityv1beta1.AuthorizationPolicy_Action
	rbac   rbacv3.RBAC_Action
	// shadow is the prefix of the counters of policies that are not enforced.
	shadow string
}

func steps() []step {
	return []step{
		// No external authorizer is asked yet, so that nobody can allow these requests.
		{securityv1beta1.AuthorizationPolicy_CUSTOM, rbacv3.RBAC_DENY, ""},
		{securityv1beta1.AuthorizationPolicy_AUDIT, rbacv3.RBAC_LOG, ""},
		{securityv1beta1.AuthorizationPolicy_DENY, rbacv3.RBAC_DENY, "istio_dry_run_deny_"},
		{securityv1beta1.AuthorizationPolicy_ALLOW, rbacv3.RBAC_ALLOW, "istio_dry_run_allow_"},
	}
}

// Filters returns the filters of the policies.
func (p Policies) Filters(mesh *meshv1alpha1.MeshConfig) *Filters {
	out := &Filters{}
	domains := envoyconf.TrustDomains(mesh)
	for _, s := range steps() {
		var enforced, tried []*snapshot.AuthorizationPolicy
		for _, policy := range p.list {
			switch {
			case policy.Spec.GetAction() != s.action:
			case policy.DryRun && s.shadow != "":
				tried = append(tried, policy)
			default:
				enforced = append(enforced, policy)
			}
		}
		if len(enforced)+len(tried) == 0 {
			continue
		}
		requests := &httprbacv3.RBAC{Rules: s.rules(enforced, domains, ofRequests)}
		connections := &networkrbacv3.RBAC{StatPrefix: "tcp.", Rules: s.rules(enforced, domains, ofConnections)}
		if len(tried) > 0 {
			requests.ShadowRules, requests.ShadowRulesStatPrefix = s.rules(tried, domains, ofRequests), s.shadow
			connections.ShadowRules, connections.ShadowRulesStatPrefix = s.rules(tried, domains, ofConnections), s.shadow
		}
		out.HTTP = append(out.HTTP, httpFilter(httpRBAC, requests))
		if rules := s.rules(enforced, domains, ofLibrary); rules != nil {
			out.Library = append(out.Library, httpFilter(httpRBAC+"."+strings.ToLower(s.action.String()), &httprbacv3.RBAC{Rules: rules}))
		}
		out.Stream = append(out.Stream, &listenerv3.Filter{Name: "envoy.filters.network.rbac", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: envoyconf.Pack(connections)}})
	}
	for _, policy := range p.list {
		out.Sources.AddConfigs(policy.Config)
	}
	return out
}

const httpRBAC = "envoy.filters.http.rbac"

func httpFilter(name string, config *httprbacv3.RBAC) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: envoyconf.Pack(config)}}
}

// rules returns the rules of policies with the action of the step, or nil if there are no policies.
// Policies that allow requests refuse all others.
func (s step) rules(list []*snapshot.AuthorizationPolicy, domains []string, reads attributes) *rbacv3.RBAC {
	if len(list) == 0 {
		return nil
	}
	out := &rbacv3.RBAC{Action: s.rbac, Policies: map[string]*rbacv3.Policy{}}
	for _, policy := range list {
		c := converter{
			domains: domains, namespace: policy.Config.Namespace, reads: reads,
			refuses: s.action != securityv1beta1.AuthorizationPolicy_ALLOW,
		}
		for i, rule := range policy.Spec.GetRules() {
			if made := c.policy(rule); made != nil {
				out.Policies[ruleName(policy, i)] = made
			}
		}
	}
	return out
}

// ruleName returns the name of a rule in Envoy's counters and logs, as in Istio.
func ruleName(policy *snapshot.AuthorizationPolicy, i int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%s]", policy.Config.Namespace, policy.Config.Name, strconv.Itoa(i))
}
