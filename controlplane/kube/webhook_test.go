// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// TestOwnRules checks that a webhook may fail closed only if its rules do not block other kinds
// while the control plane is down.
func TestOwnRules(t *testing.T) {
	t.Parallel()
	rule := func(groups, resources []string) admissionv1.RuleWithOperations {
		return admissionv1.RuleWithOperations{Rule: admissionv1.Rule{APIGroups: groups, Resources: resources}}
	}
	all := []string{"*"}
	for name, c := range map[string]struct {
		rules []admissionv1.RuleWithOperations
		own   bool
	}{
		"Istio's":                 {[]admissionv1.RuleWithOperations{rule([]string{"networking.istio.io", "security.istio.io"}, all)}, true},
		"named":                   {[]admissionv1.RuleWithOperations{rule([]string{"networking.k8s.io"}, []string{"ingresses", "ingressclasses"})}, true},
		"the Gateway API's":       {[]admissionv1.RuleWithOperations{rule([]string{"gateway.networking.k8s.io"}, []string{"httproutes"})}, true},
		"NetworkPolicies":         {[]admissionv1.RuleWithOperations{rule([]string{"networking.k8s.io"}, all)}, false},
		"rule of another webhook": {[]admissionv1.RuleWithOperations{rule([]string{"networking.k8s.io"}, []string{"ingresses", "networkpolicies"})}, false},
		"subresources":            {[]admissionv1.RuleWithOperations{rule([]string{"networking.istio.io"}, []string{"*/*"})}, false},
		"every group":             {[]admissionv1.RuleWithOperations{rule(all, all)}, false},
		"one rule too many":       {[]admissionv1.RuleWithOperations{rule([]string{"networking.istio.io"}, all), rule([]string{"apps"}, all)}, false},
		"none":                    {nil, false},
		"no group":                {[]admissionv1.RuleWithOperations{rule(nil, all)}, false},
		"no resource":             {[]admissionv1.RuleWithOperations{rule([]string{"networking.istio.io"}, nil)}, false},
	} {
		if got := ownRules(c.rules); got != c.own {
			t.Errorf("%s: ownRules() = %v, want %v", name, got, c.own)
		}
	}
}
