// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authorization

import (
	"fmt"
	"slices"
	"strconv"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Unread returns warnings of rules that read requests, or ask an authorizer that does, and apply to a
// port where requests are not read. It leaves out the rules in reported, and adds those that it
// returns.
func (p Policies) Unread(port uint32, reported map[string]bool) []model.Problem {
	var out []model.Problem
	for _, policy := range p.list {
		effect := "denies every connection that its other attributes match"
		switch policy.Spec.GetAction() {
		case securityv1beta1.AuthorizationPolicy_ALLOW:
			effect = "allows no connection"
		case securityv1beta1.AuthorizationPolicy_AUDIT, securityv1beta1.AuthorizationPolicy_CUSTOM:
			effect = "matches every connection that its other attributes match"
		case securityv1beta1.AuthorizationPolicy_DENY:
		}
		overHTTP := slices.ContainsFunc(p.asked, func(a *authorizer) bool {
			return a.err == nil && a.Provider.GetEnvoyExtAuthzHttp() != nil && slices.Contains(a.policies, policy)
		})
		for i, rule := range policy.Spec.GetRules() {
			name := ruleName(policy, i)
			if reported[name] || !appliesTo(rule, port) {
				continue
			}
			if hasAttribute(rule, ofRequest, ofEnvoyRequest) {
				reported[name] = true
				out = append(out, model.Problem{
					Object: policy.Config.Key, Source: policy.Config.Source, Warning: true,
					Reason: fmt.Sprintf("spec.rules[%d] has attributes of HTTP, and port %d of the workloads is not an HTTP port: there it %s; name the ports of the rule in to.operation.ports", i, port, effect),
				})
			}
			if overHTTP {
				reported[name] = true
				out = append(out, model.Problem{
					Object: policy.Config.Key, Source: policy.Config.Source, Warning: true,
					Reason: fmt.Sprintf("spec.rules[%d] calls an authorizer over HTTP, and port %d of the workloads is not an HTTP port: there it denies what it matches; name the ports of the rule in to.operation.ports, or a provider with envoyExtAuthzGrpc", i, port),
				})
			}
		}
	}
	return out
}

// unsupported returns warnings of enforced rules with attributes that gRPC servers without a proxy do
// not know.
func (p Policies) unsupported() []model.Problem {
	var out []model.Problem
	for _, policy := range p.list {
		effect := "refuses every request that its other attributes match"
		switch policy.Spec.GetAction() {
		case securityv1beta1.AuthorizationPolicy_ALLOW:
			effect = "allows no request"
		case securityv1beta1.AuthorizationPolicy_AUDIT:
			continue
		case securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_CUSTOM:
		}
		for i, rule := range policy.Spec.GetRules() {
			if !policy.DryRun && hasAttribute(rule, ofEnvoy, ofEnvoyRequest) {
				out = append(out, model.Problem{
					Object: policy.Config.Key, Source: policy.Config.Source, Warning: true,
					Reason: fmt.Sprintf("spec.rules[%d] has attributes that a gRPC server without a proxy does not know, such as those of tokens: there it %s; inject a proxy into the workload, or remove the attributes", i, effect),
				})
			}
		}
	}
	return out
}

// hasAttribute reports whether a rule has an attribute of one of the kinds.
func hasAttribute(r *securityv1beta1.Rule, kinds ...kind) bool {
	c := &converter{}
	return slices.ContainsFunc(r.GetTo(), func(to *securityv1beta1.Rule_To) bool {
		return anyOfKind(c.operation(to.GetOperation()), kinds)
	}) || slices.ContainsFunc(r.GetFrom(), func(from *securityv1beta1.Rule_From) bool {
		return anyOfKind(c.source(from.GetSource()), kinds)
	}) || slices.ContainsFunc(r.GetWhen(), func(w *securityv1beta1.Condition) bool {
		return anyOfKind(c.destination(w), kinds) || anyOfKind(c.caller(w), kinds)
	})
}

// anyOfKind reports whether an attribute with values is of one of the kinds.
func anyOfKind[M matcher](list []attribute[M], kinds []kind) bool {
	return slices.ContainsFunc(list, func(at attribute[M]) bool {
		return slices.Contains(kinds, at.kind) && len(at.values)+len(at.others) > 0
	})
}

// appliesTo reports whether a rule may apply to a port.
func appliesTo(r *securityv1beta1.Rule, port uint32) bool {
	text := strconv.FormatUint(uint64(port), 10)
	return slices.ContainsFunc(alternatives(r.GetTo()), func(to *securityv1beta1.Rule_To) bool {
		ports := to.GetOperation().GetPorts()
		return (len(ports) == 0 || slices.Contains(ports, text)) && !slices.Contains(to.GetOperation().GetNotPorts(), text)
	})
}
