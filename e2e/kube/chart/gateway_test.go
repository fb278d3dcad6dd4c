// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package chart

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// TestRightsToDeploy checks that the control plane has rights on Deployments only if it deploys
// Gateways.
func TestRightsToDeploy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values string
		want   bool
	}{
		"by default":          {"", true},
		"off":                 {"gatewayAPI: {deployments: false}", false},
		"without Gateway API": {"gatewayAPI: {enabled: false}", false},
		"without injection":   {"injection: {enabled: false}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := tool(t, "", "install", "--dry-run", "-f", writeValues(t, c.values))
			if err != nil {
				t.Fatal(err)
			}
			objects, got := objectsOf(t, out), map[string]bool{}
			for _, role := range typed[rbacv1.ClusterRole](t, objects, "ClusterRole") {
				for _, rule := range role.Rules {
					for _, resource := range rule.Resources {
						if slices.Contains(rule.Verbs, "create") || slices.Contains(rule.Verbs, "delete") {
							got[resource] = true
						}
					}
				}
			}
			for _, resource := range []string{"deployments", "services", "serviceaccounts", "horizontalpodautoscalers", "poddisruptionbudgets"} {
				if got[resource] != c.want {
					t.Errorf("may write %s: %v, want %v", resource, got[resource], c.want)
				}
			}
			env := map[string]string{}
			for _, d := range typed[appsv1.Deployment](t, objects, "Deployment") {
				for _, v := range d.Spec.Template.Spec.Containers[0].Env {
					env[v.Name] = v.Value
				}
			}
			want := map[bool]string{true: "true", false: "false"}[c.want]
			if value := env["PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER"]; value != want {
				t.Errorf("the control plane deploys: %q, want %q", value, want)
			}
		})
	}
}
