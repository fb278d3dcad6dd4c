// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// webEntry returns a service with one endpoint with the label version=v1.
func webEntry() *model.Config {
	return object(model.ServiceEntry, "default", "web", 0, &networkingv1alpha3.ServiceEntry{
		Hosts: []string{"web.example.com"}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "10.0.0.1", Labels: map[string]string{"version": "v1"}}},
	})
}

func webRule(name string, age int, change func(*networkingv1alpha3.DestinationRule)) *model.Config {
	spec := &networkingv1alpha3.DestinationRule{Host: "web.example.com", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{}}
	change(spec)
	return object(model.DestinationRule, "default", name, age, spec)
}

func withTLS(tls *networkingv1alpha3.ClientTLSSettings) func(*networkingv1alpha3.DestinationRule) {
	return func(spec *networkingv1alpha3.DestinationRule) { spec.TrafficPolicy.Tls = tls }
}

// TestDestinationRuleProblems checks that exactly the settings that do not have the described
// effect are reported, with their field.
func TestDestinationRuleProblems(t *testing.T) {
	t.Parallel()
	subset := func(version string) *networkingv1alpha3.Subset {
		return &networkingv1alpha3.Subset{Name: "v", Labels: map[string]string{"version": version}}
	}
	const (
		simple = networkingv1alpha3.ClientTLSSettings_SIMPLE
		mutual = networkingv1alpha3.ClientTLSSettings_MUTUAL
	)
	for _, tc := range []struct {
		name  string
		rules []*model.Config
		want  []string // the prefix of each problem
	}{
		{"files", []*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: simple}))}, nil},
		{
			"no certificate",
			[]*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: mutual, PrivateKey: "x"}))},
			[]string{"spec.trafficPolicy.tls.mode: MUTUAL needs a certificate"},
		},
		{
			"a name that the agent cannot be asked for",
			[]*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: mutual, PrivateKey: "x~y", ClientCertificate: "z"}))},
			[]string{"spec.trafficPolicy.tls.privateKey: the agent cannot serve"},
		},
		{
			"secret of another server",
			[]*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: simple, CredentialName: "sds://x"}))},
			[]string{"spec.trafficPolicy.tls.credentialName: no secrets are served for sds://"},
		},
		{
			"secret without a selector",
			[]*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: simple, CredentialName: "x"}))},
			[]string{"spec.trafficPolicy.tls.credentialName: sidecars use it only from a rule with a workloadSelector"},
		},
		{
			"roots in a ConfigMap without a policy",
			[]*model.Config{webRule("a", 0, withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: simple, CredentialName: "configmap://a/x"}))},
			[]string{"spec.trafficPolicy.tls.credentialName: roots in ConfigMaps are for BackendTLSPolicies"},
		},
		{"secret with a selector", []*model.Config{webRule("a", 0, func(spec *networkingv1alpha3.DestinationRule) {
			withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: simple, CredentialName: "x"})(spec)
			spec.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}}
		})}, nil},
		{"subset with endpoints", []*model.Config{webRule("a", 0, func(spec *networkingv1alpha3.DestinationRule) {
			spec.Subsets = []*networkingv1alpha3.Subset{subset("v1")}
		})}, nil},
		{"subset without", []*model.Config{webRule("a", 0, func(spec *networkingv1alpha3.DestinationRule) {
			spec.Subsets = []*networkingv1alpha3.Subset{subset("v2")}
		})}, []string{`spec.subsets[0].labels: no endpoint of "web.example.com" has them`}},
		{"two policies", []*model.Config{
			webRule("a", 0, withTLS(nil)), webRule("b", 1, withTLS(nil)),
		}, []string{`spec.trafficPolicy: "web.example.com" already has one in the older DestinationRule a, which wins`}},
		{"other exportTo", []*model.Config{
			webRule("a", 0, withTLS(nil)), webRule("b", 1, func(spec *networkingv1alpha3.DestinationRule) { spec.ExportTo = []string{"."} }),
		}, []string{"spec.exportTo: differs from that of the older DestinationRule a"}},
		{"ring", []*model.Config{webRule("a", 0, func(spec *networkingv1alpha3.DestinationRule) {
			hash := &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{HashAlgorithm: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_RingHash_{
				RingHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_RingHash{MinimumRingSize: MaxRing + 1},
			}}
			spec.TrafficPolicy.LoadBalancer = &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{ConsistentHash: hash}}
		})}, []string{"spec.trafficPolicy.loadBalancer.consistentHash.ringHash.minimumRingSize: 8388609 is more than Envoy allows"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			mesh := append(objects{webEntry()}, tc.rules...).build()
			var got []string
			for _, p := range mesh.Problems {
				got = append(got, p.Reason)
			}
			if !slices.EqualFunc(got, tc.want, strings.HasPrefix) {
				t.Errorf("problems: got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestLocalityDependence checks that rules report whether they depend on the locality of a proxy,
// and on which of its labels.
func TestLocalityDependence(t *testing.T) {
	t.Parallel()
	plain := objects{webEntry(), webRule("a", 0, withTLS(nil))}.build().DestinationRules
	if plain.UsesLocality || len(plain.LocalityLabels) != 0 {
		t.Errorf("a rule without locality settings: UsesLocality = %v, labels %v; want false and none", plain.UsesLocality, plain.LocalityLabels)
	}
	placed := objects{webEntry(), webRule("a", 0, func(spec *networkingv1alpha3.DestinationRule) {
		spec.Subsets = []*networkingv1alpha3.Subset{{Name: "v", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{
			LoadBalancer: &networkingv1alpha3.LoadBalancerSettings{LocalityLbSetting: &networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: []string{"zone=a", "app", "app"}}},
		}}}
	})}.build().DestinationRules
	if want := []string{"app", "zone"}; !placed.UsesLocality || !slices.Equal(placed.LocalityLabels, want) {
		t.Errorf("a subset with failoverPriority: UsesLocality = %v, labels %v; want true and %v", placed.UsesLocality, placed.LocalityLabels, want)
	}
}
