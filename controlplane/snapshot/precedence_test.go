// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestVirtualServicePrecedence checks the precedence of VirtualServices. A more specific host comes
// first, then one exported only to its own namespace, then one exported to some namespaces, then
// one exported to all, then the older one.
func TestVirtualServicePrecedence(t *testing.T) {
	t.Parallel()
	vs := func(namespace, name string, age int, hosts, to []string) *model.Config {
		return object(model.VirtualService, namespace, name, age, &networkingv1alpha3.VirtualService{Hosts: hosts, ExportTo: to})
	}
	host := []string{"web.a.svc.cluster.local"}
	m := objects{
		vs("a", "public-old", 0, host, nil),
		vs("a", "public-young", 1, host, []string{"*"}),
		vs("c", "for-b", 2, host, []string{"b", "."}),
		vs("b", "private", 3, host, []string{"."}),
		vs("d", "private-wide", 0, []string{"*.svc.cluster.local"}, []string{"d"}),
	}.build()
	for namespace, want := range map[string]string{"a": "public-old", "b": "private", "c": "for-b", "d": "public-old", "e": "public-old"} {
		if got := m.VirtualServices.For(host[0], namespace); got == nil || got.Config.Name != want {
			t.Errorf("VirtualService in namespace %s: got %v, want %s", namespace, got, want)
		}
	}
	for _, p := range m.Problems {
		if strings.Contains(p.Reason, "is already in the older") && p.Object.Name != "public-young" {
			t.Errorf("%s takes precedence in its namespace, but is reported: %s", p.Object.Name, p.Reason)
		}
	}
}

// TestRulesOfTheRootNamespace checks that private rules of the root namespace take precedence for
// its own proxies, and that its exported rules come last.
func TestRulesOfTheRootNamespace(t *testing.T) {
	t.Parallel()
	rule := func(namespace, name string, to ...string) *model.Config {
		return object(model.DestinationRule, namespace, name, 0, &networkingv1alpha3.DestinationRule{Host: "web.a.svc.cluster.local", ExportTo: to})
	}
	svc := model.ServiceKey{Hostname: "web.a.svc.cluster.local", Namespace: "a"}
	m := objects{rule("istio-system", "private", "."), rule("istio-system", "public"), rule("a", "own")}.build()
	for namespace, want := range map[string]string{"istio-system": "private", "a": "own", "b": "own"} {
		if got := m.DestinationRules.For(svc, namespace, nil); got == nil || got.From[0].Name != want {
			t.Errorf("DestinationRule in namespace %s: got %v, want %s", namespace, got, want)
		}
	}
	m = objects{rule("istio-system", "public"), rule("a", "own")}.build()
	if got := m.DestinationRules.For(svc, "istio-system", nil); got.From[0].Name != "own" {
		t.Errorf("DestinationRule in the root namespace: got %s, want that of the service", got.From[0].Name)
	}
}

// TestBackendTLSPolicyTakesPrecedence checks that no rule overrides the TLS settings of a
// BackendTLSPolicy: not an older one, nor one of the client's namespace, of a port or subset, or
// for a wildcard. The other settings of the rule must remain, and the object of the policy must be
// among the objects of the rule.
func TestBackendTLSPolicyTakesPrecedence(t *testing.T) {
	t.Parallel()
	const host = "web.a.svc.cluster.local"
	secure := object(model.DestinationRule, "a", "policy", 5, &networkingv1alpha3.DestinationRule{Host: host, ExportTo: []string{"*"}, TrafficPolicy: &networkingv1alpha3.TrafficPolicy{
		Tls: &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_SIMPLE, Sni: "all"},
		PortLevelSettings: []*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{{
			Port: &networkingv1alpha3.PortSelector{Number: 81}, Tls: &networkingv1alpha3.ClientTLSSettings{Mode: networkingv1alpha3.ClientTLSSettings_SIMPLE, Sni: "one"},
		}},
	}})
	secure.Annotations = map[string]string{semanticsAnnotation: gatewaySemantics}
	random := &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_Simple{Simple: networkingv1alpha3.LoadBalancerSettings_RANDOM}}
	plain := &networkingv1alpha3.TrafficPolicy{
		LoadBalancer: random, Tls: &networkingv1alpha3.ClientTLSSettings{},
		PortLevelSettings: []*networkingv1alpha3.TrafficPolicy_PortTrafficPolicy{{Port: &networkingv1alpha3.PortSelector{Number: 80}, LoadBalancer: random}},
	}
	rule := func(namespace, host string, to ...string) *model.Config {
		return object(model.DestinationRule, namespace, "mine", 0, &networkingv1alpha3.DestinationRule{
			Host: host, ExportTo: to, TrafficPolicy: plain, Subsets: []*networkingv1alpha3.Subset{{Name: "v1", TrafficPolicy: plain}},
		})
	}
	svc := model.ServiceKey{Hostname: host, Namespace: "a"}
	for name, mine := range map[string]*model.Config{
		"older": rule("a", host), "private": rule("a", host, "."), "of the client": rule("b", host), "wildcard of the client": rule("b", "*.svc.cluster.local"),
	} {
		for _, namespace := range []string{"a", "b"} {
			m := objects{mine, secure}.build()
			got := m.DestinationRules.For(svc, namespace, nil)
			policies := []*networkingv1alpha3.TrafficPolicy{got.Policy}
			if s := got.Subset("v1"); s != nil {
				policies = append(policies, s.GetTrafficPolicy())
			}
			for _, p := range policies {
				if p.GetTls().GetSni() != "all" {
					t.Errorf("%s in namespace %s: TLS: got %v", name, namespace, p.GetTls())
				}
				for _, at := range p.GetPortLevelSettings() {
					if want := map[uint32]string{80: "all", 81: "one"}[at.GetPort().GetNumber()]; at.GetTls().GetSni() != want {
						t.Errorf("%s in namespace %s: TLS of port %d: got %v, want that for %s", name, namespace, at.GetPort().GetNumber(), at.GetTls(), want)
					}
					if p.GetLoadBalancer() != nil && at.GetLoadBalancer() == nil {
						t.Errorf("%s in namespace %s: port %d lost its load balancer settings", name, namespace, at.GetPort().GetNumber())
					}
				}
			}
			without := Build(m, objects{mine}.input(), model.NewChange(secure.Key))
			if r := without.DestinationRules.For(svc, namespace, nil); r != nil && r.Policy.GetTls().GetSni() != "" {
				t.Errorf("%s in namespace %s: TLS settings of a removed policy remain: %v", name, namespace, r.Policy)
			}
		}
	}
	if plain.GetTls().GetSni() != "" || len(plain.GetPortLevelSettings()) != 1 {
		t.Error("a user's object was modified")
	}
}

// TestInvalidRuleValues checks that values that the kernel rejects and unknown TLS modes are
// reported.
func TestInvalidRuleValues(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*networkingv1alpha3.DestinationRule){
		"tls.mode: 9 is unknown": withTLS(&networkingv1alpha3.ClientTLSSettings{Mode: 9}),
		"tcpKeepalive.time: 36000s is more than the kernel allows: 32767s is used": func(spec *networkingv1alpha3.DestinationRule) {
			spec.TrafficPolicy.ConnectionPool = &networkingv1alpha3.ConnectionPoolSettings{Tcp: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings{
				TcpKeepalive: &networkingv1alpha3.ConnectionPoolSettings_TCPSettings_TcpKeepalive{Time: durationpb.New(36000e9)},
			}}
		},
	} {
		m := objects{webEntry(), webRule("a", 0, change)}.build()
		if len(m.Problems) != 1 || !strings.Contains(m.Problems[0].Reason, want) {
			t.Errorf("problems: got %v, want one with %q", m.Problems, want)
		}
	}
}
