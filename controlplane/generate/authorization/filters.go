// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Policies are the AuthorizationPolicies of a workload. The zero value has none.
type Policies struct {
	list  []*snapshot.AuthorizationPolicy
	asked []*authorizer
	// issuers are those whose tokens are validated.
	issuers []string
	// Key is equal for workloads with the same policies, authorizers and issuers. It is empty without
	// policies.
	Key string
	// Authorizers is the part of the key that names the clusters of external authorizers.
	Authorizers string
	problems    []model.Problem
}

// Of returns the policies of a workload, which validates the tokens of the given issuers, and the
// policies that name the given services. The Sidecar of the workload may be nil.
func Of(mesh *snapshot.Mesh, proxy *model.Proxy, sidecar *snapshot.Sidecar, services []model.Key, issuers []string) Policies {
	p := Policies{list: mesh.AuthorizationPolicies.For(proxy.Namespace, proxy.OwnLabels(), services), issuers: issuers}
	if len(p.list) == 0 {
		return p
	}
	var key strings.Builder
	for _, policy := range p.list {
		key.WriteString(policy.Key)
	}
	p.asked = authorizersOf(mesh, p.list, proxy, sidecar)
	for _, a := range p.asked {
		p.Authorizers += a.key() + ","
		if a.err == nil {
			continue
		}
		for _, policy := range a.policies {
			// The snapshot reports authorizers that the namespace of the policy cannot ask.
			if _, err := mesh.Authorizer(a.name, policy.Config.Namespace, nil); err == nil {
				p.problems = append(p.problems, snapshot.NotAsked(policy.Config, a.err))
			}
		}
	}
	for _, issuer := range issuers {
		key.WriteString(strconv.Quote(issuer))
	}
	p.Key = key.String() + p.Authorizers
	return p
}

// Asked is an external authorizer and the first policy that asks it.
type Asked struct {
	snapshot.Authorizer
	Policy *model.Config
}

// Asked returns the external authorizers that the policies ask.
func (p Policies) Asked() []Asked {
	var out []Asked
	for _, a := range p.asked {
		if a.err == nil {
			out = append(out, Asked{a.Authorizer, a.policies[0].Config})
		}
	}
	return out
}

// Asks reports whether the policies ask the authorizer of a cluster.
func (p Policies) Asks(cluster string) bool {
	return slices.ContainsFunc(p.asked, func(a *authorizer) bool { return a.err == nil && a.cluster() == cluster })
}

// Filters are the filters that enforce policies.
type Filters struct {
	// HTTP and Stream are the filters for requests and for connections whose requests are not read,
	// in the order in which they decide.
	HTTP   []*hcmv3.HttpFilter
	Stream []*listenerv3.Filter
	// External are the filters for requests that ask external authorizers. They come before those
	// of HTTP.
	External []*hcmv3.HttpFilter
	// HTTPLog and StreamLog log what policies that are not enforced would deny.
	HTTPLog, StreamLog []*accesslogv3.AccessLog
	// Library are the filters for requests to an application without an Envoy. A gRPC library
	// requires each to have a name of its own.
	Library []*hcmv3.HttpFilter
	// Sources are the objects of the policies.
	Sources xds.Sources
	// Problems are those of policies whose authorizers the workload cannot ask. Unsupported are those
	// of policies that gRPC libraries do not support: they ask no authorizers and know no tokens.
	Problems, Unsupported []model.Problem
}

// step is one of the decisions about a request.
type step struct {
	action securityv1beta1.AuthorizationPolicy_Action
	rbac   rbacv3.RBAC_Action
	// shadow is the prefix of the counters of policies that are not enforced.
	shadow string
}

// steps returns the steps after the decisions of external authorizers, in their order.
func steps() []step {
	return []step{
		{securityv1beta1.AuthorizationPolicy_AUDIT, rbacv3.RBAC_LOG, ""},
		{securityv1beta1.AuthorizationPolicy_DENY, rbacv3.RBAC_DENY, "istio_dry_run_deny_"},
		{securityv1beta1.AuthorizationPolicy_ALLOW, rbacv3.RBAC_ALLOW, "istio_dry_run_allow_"},
	}
}

// Filters returns the filters of the policies.
func (p Policies) Filters(mesh *meshv1alpha1.MeshConfig) *Filters {
	out := &Filters{}
	base := converter{domains: envoyconf.TrustDomains(mesh), issuers: p.issuers, headers: &headerBudget{left: maxHeaderSize}}
	out.addCustom(p.asked, base)
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
		connections := &networkrbacv3.RBAC{StatPrefix: "tcp.", Rules: s.rules(enforced, base, ofConnections)}
		if len(tried) > 0 {
			connections.ShadowRules, connections.ShadowRulesStatPrefix = s.rules(tried, base, ofConnections), s.shadow
			out.addDryRun(s, tried)
		}
		out.HTTP = append(out.HTTP, s.requests(enforced, tried, base)...)
		out.addLibrary(s, enforced, base)
		out.Stream = append(out.Stream, streamFilter(connections))
	}
	for _, policy := range p.list {
		out.Sources.AddConfigs(policy.Config)
	}
	out.Problems, out.Unsupported = slices.Concat(p.problems, base.headers.problems), p.unsupported()
	for _, a := range p.asked {
		if a.err == nil {
			out.Sources.Add(a.Service.Source)
		}
		for _, policy := range a.policies {
			out.Unsupported = append(out.Unsupported, snapshot.NotAsked(policy.Config, errLibrary))
		}
	}
	return out
}

var errLibrary = errors.New("a gRPC server without a proxy calls no authorizer: inject a proxy into its workload, or use another action")

// addLibrary adds the filter of a step for gRPC libraries.
func (out *Filters) addLibrary(s step, list []*snapshot.AuthorizationPolicy, base converter) {
	if rules := s.rules(list, base, ofLibrary); rules != nil {
		out.Library = append(out.Library, envoyconf.RequestFilter(httpRBAC+"."+strings.ToLower(s.action.String()), &httprbacv3.RBAC{Rules: rules}))
	}
}

// The names of the filters under which they store metadata.
const (
	httpRBAC   = "envoy.filters.http.rbac"
	streamRBAC = "envoy.filters.network.rbac"
)

func streamFilter(config *networkrbacv3.RBAC) *listenerv3.Filter {
	return &listenerv3.Filter{Name: streamRBAC, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: envoyconf.Pack(config)}}
}

// rules returns the rules of policies with the action of the step, or nil if there are no policies.
// Policies that allow requests refuse all others.
func (s step) rules(list []*snapshot.AuthorizationPolicy, base converter, reads attributes) *rbacv3.RBAC {
	if len(list) == 0 {
		return nil
	}
	out := &rbacv3.RBAC{Action: s.rbac, Policies: map[string]*rbacv3.Policy{}}
	for _, policy := range list {
		c := base
		c.namespace, c.reads = policy.Config.Namespace, reads
		c.refuses = s.action != securityv1beta1.AuthorizationPolicy_ALLOW
		for i, rule := range policy.Spec.GetRules() {
			if made := c.policy(rule); made != nil {
				out.Policies[ruleName(policy, i)] = made
			}
			c.headers.ruleEnds(policy, i)
		}
	}
	return out
}

// ruleName returns the name of a rule in Envoy's counters and logs, as in Istio.
func ruleName(policy *snapshot.AuthorizationPolicy, i int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%s]", policy.Config.Namespace, policy.Config.Name, strconv.Itoa(i))
}

// ParseRule returns the namespace and the name of the policy, and the index of the rule, of a name that
// ruleName returns.
func ParseRule(name string) (policy model.Key, index int, ok bool) {
	rest, ok := strings.CutPrefix(name, "ns[")
	namespace, rest, found := strings.Cut(rest, "]-policy[")
	object, rest, named := strings.Cut(rest, "]-rule[")
	index, err := strconv.Atoi(strings.TrimSuffix(rest, "]"))
	return model.Key{Kind: model.AuthorizationPolicy, Namespace: namespace, Name: object}, index, ok && found && named && err == nil
}
