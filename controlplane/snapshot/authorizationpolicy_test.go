// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func authorization(namespace, name string, spec *securityv1beta1.AuthorizationPolicy) *model.Config {
	return &model.Config{Key: model.Key{Kind: model.AuthorizationPolicy, Namespace: namespace, Name: name}, Source: namespace + "/" + name, Spec: spec}
}

// TestAuthorizationPolicies checks which policies apply to workloads and gateways.
func TestAuthorizationPolicies(t *testing.T) {
	t.Parallel()
	of := func(app string) *typev1beta1.WorkloadSelector {
		return &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
	}
	ref := func(group, kind, name string) *typev1beta1.PolicyTargetReference {
		return &typev1beta1.PolicyTargetReference{Group: group, Kind: kind, Name: name}
	}
	refs := func(list ...*typev1beta1.PolicyTargetReference) *securityv1beta1.AuthorizationPolicy {
		return &securityv1beta1.AuthorizationPolicy{TargetRefs: list}
	}
	gateway, class := ref(gatewayAPIGroup, "Gateway", "edge"), ref(gatewayAPIGroup, "GatewayClass", "istio")
	a := newAuthorizationPolicies(nil, []*model.Config{
		authorization("root", "mesh", &securityv1beta1.AuthorizationPolicy{}),
		authorization("root", "web", &securityv1beta1.AuthorizationPolicy{Selector: of("web")}),
		authorization("root", "class", refs(class)),
		authorization("root", "gateway", refs(gateway)),
		authorization("shop", "all", &securityv1beta1.AuthorizationPolicy{Selector: &typev1beta1.WorkloadSelector{}}),
		authorization("shop", "web", &securityv1beta1.AuthorizationPolicy{Selector: of("web")}),
		authorization("shop", "pay", &securityv1beta1.AuthorizationPolicy{Selector: of("pay")}),
		authorization("shop", "gateway", &securityv1beta1.AuthorizationPolicy{TargetRef: gateway}),
		authorization("shop", "both", refs(gateway, ref("", "Service", "web"))),
		authorization("shop", "class", refs(class)),
	}, settings{root: "root"})
	service := []model.Key{{Kind: model.KubernetesService, Namespace: "shop", Name: "web"}}
	foreign := []model.Key{{Kind: model.KubernetesService, Namespace: "other", Name: "web"}}
	for _, tc := range []struct {
		namespace string
		labels    map[string]string
		services  []model.Key
		want      []string
	}{
		{"other", nil, nil, []string{"root/mesh"}},
		{"other", map[string]string{"app": "web"}, nil, []string{"root/mesh", "root/web"}},
		{"shop", nil, nil, []string{"root/mesh", "shop/all"}},
		{"shop", map[string]string{"app": "web", "v": "1"}, nil, []string{"root/mesh", "root/web", "shop/all", "shop/web"}},
		{"root", map[string]string{"app": "web"}, nil, []string{"root/mesh", "root/web"}},
		{"shop", map[string]string{gatewayNameLabel: "edge"}, nil, []string{"root/mesh", "shop/all", "shop/gateway", "shop/both"}},
		{"root", map[string]string{gatewayNameLabel: "edge", gatewayClassLabel: "istio"}, nil, []string{"root/mesh", "root/class", "root/gateway"}},
		{"far", map[string]string{gatewayNameLabel: "edge", gatewayClassLabel: "istio"}, nil, []string{"root/mesh", "root/class"}},
		{"shop", nil, service, []string{"root/mesh", "shop/all", "shop/both"}},
		{"shop", map[string]string{gatewayNameLabel: "edge"}, slices.Concat(service, service), []string{"root/mesh", "shop/all", "shop/gateway", "shop/both"}},
		{"other", nil, foreign, []string{"root/mesh"}},
	} {
		var got []string
		for _, p := range a.For(tc.namespace, tc.labels, tc.services) {
			got = append(got, p.Config.Source)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s %v: got %v, want %v", tc.namespace, tc.labels, got, tc.want)
		}
	}
	if !a.NameServices() {
		t.Error("NameServices() = false although a policy names a service")
	}
	if len(a.problems) != 1 {
		t.Errorf("problems: got %v, want 1", a.problems)
	}
}

// BenchmarkAuthorizationPolicies looks up the policies of a workload among 10,000.
func BenchmarkAuthorizationPolicies(b *testing.B) {
	var objects []*model.Config
	for i := range 10_000 {
		objects = append(objects, authorization(fmt.Sprint("ns-", i%100), fmt.Sprint("p-", i), &securityv1beta1.AuthorizationPolicy{
			Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i/100)}},
		}))
	}
	a := newAuthorizationPolicies(nil, objects, settings{root: "root"})
	for b.Loop() {
		if len(a.For("ns-7", map[string]string{"app": "app-3", "version": "v1", "pod-template-hash": "x"}, nil)) != 1 {
			b.Fatal("the policy was not found")
		}
	}
}
