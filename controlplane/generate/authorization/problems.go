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
			if readsRequests(rule) {
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
					Reason: fmt.Sprintf("spec.rules[%d] asks an authorizer over HTTP, and port %d of the workloads is not an HTTP port: there it denies what it matches; name the ports of the rule in to.operation.ports, or a provider with envoyExtAuthzGrpc", i, port),
				})
			}
		}
	}
	return out
}

// readsRequests reports whether a rule has attributes of requests.
func readsRequests(r *securityv1beta1.Rule) bool {
	c := &converter{}
	has := func(k kind, values, others []string) bool {
		return (k == ofRequest || k == ofToken) && len(values)+len(others) > 0
	}
	for _, to := range r.GetTo() {
		for _, at := range c.operation(to.GetOperation()) {
			if has(at.kind, at.values, at.others) {
				return true
			}
		}
	}
	for _, from := range r.GetFrom() {
		for _, at := range c.source(from.GetSource()) {
			if has(at.kind, at.values, at.others) {
				return true
			}
		}
	}
	return slices.ContainsFunc(r.GetWhen(), func(w *securityv1beta1.Condition) bool {
		of := c.caller(w)
		return len(of) > 0 && has(of[0].kind, of[0].values, of[0].others)
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
