// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	strict     = securityv1beta1.PeerAuthentication_MutualTLS_STRICT
	disable    = securityv1beta1.PeerAuthentication_MutualTLS_DISABLE
	permissive = securityv1beta1.PeerAuthentication_MutualTLS_PERMISSIVE
	unset      = securityv1beta1.PeerAuthentication_MutualTLS_UNSET
)

func peer(mode securityv1beta1.PeerAuthentication_MutualTLS_Mode, labels map[string]string) *securityv1beta1.PeerAuthentication {
	p := &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: mode}}
	if labels != nil {
		p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
	}
	return p
}

func TestPeerAuthenticationMode(t *testing.T) {
	t.Parallel()
	web := peer(unset, map[string]string{"app": "web"})
	web.PortLevelMtls = map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS{81: {Mode: disable}, 82: {Mode: unset}}
	m := objects{
		object(model.PeerAuthentication, "istio-system", "default", 0, peer(strict, nil)),
		object(model.PeerAuthentication, "istio-system", "younger", 1, peer(disable, nil)),
		object(model.PeerAuthentication, "istio-system", "selected", 0, peer(disable, map[string]string{"app": "web"})),
		object(model.PeerAuthentication, "a", "younger", 1, peer(disable, nil)),
		object(model.PeerAuthentication, "a", "older", 0, peer(permissive, nil)),
		object(model.PeerAuthentication, "b", "web", 0, web),
		object(model.PeerAuthentication, "b", "web-younger", 1, peer(disable, map[string]string{"app": "web"})),
		object(model.PeerAuthentication, "b", "nothing", 0, &securityv1beta1.PeerAuthentication{}),
	}.build()
	app := map[string]string{"app": "web", "version": "v1"}
	tests := []struct {
		name      string
		namespace string
		labels    map[string]string
		port      uint32
		want      MutualTLS
	}{
		{"mesh, oldest", "x", app, 80, MutualTLSStrict},
		{"namespace, oldest", "a", app, 80, MutualTLSPermissive},
		{"workload says nothing", "b", app, 80, MutualTLSStrict},
		{"port of the workload", "b", app, 81, MutualTLSDisabled},
		{"port says nothing", "b", app, 82, MutualTLSStrict},
		{"another workload", "b", map[string]string{"app": "other"}, 81, MutualTLSStrict},
		{"selector in the root namespace", "istio-system", app, 80, MutualTLSStrict},
	}
	for _, tc := range tests {
		if got := m.PeerAuthentications.Mode(tc.namespace, tc.labels, tc.port); got != tc.want {
			t.Errorf("%s: Mode() = %d, want %d", tc.name, got, tc.want)
		}
	}
	if got := (objects{}).build().PeerAuthentications.Mode("x", nil, 80); got != MutualTLSPermissive {
		t.Errorf("Mode() without objects = %d, want permissive", got)
	}
}

func TestVirtualServiceFor(t *testing.T) {
	t.Parallel()
	vs := func(namespace, name string, age int, spec *networkingv1alpha3.VirtualService) *model.Config {
		return object(model.VirtualService, namespace, name, age, spec)
	}
	m := objects{
		vs("a", "older", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"web"}}),
		vs("a", "younger", 1, &networkingv1alpha3.VirtualService{Hosts: []string{"web.a.svc.cluster.local"}}),
		vs("a", "private", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"secret.example.com"}, ExportTo: []string{"."}}),
		vs("a", "wide", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"*.example.com"}}),
		vs("a", "narrow", 1, &networkingv1alpha3.VirtualService{Hosts: []string{"*.shop.example.com"}}),
		vs("a", "edge", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"edge.test"}, Gateways: []string{"ingress"}}),
		vs("a", "both", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"both.test"}, Gateways: []string{"ingress", "mesh"}}),
	}.build()
	tests := []struct{ host, namespace, want string }{
		{"web.a.svc.cluster.local", "b", "older"},
		{"web.b.svc.cluster.local", "b", ""},
		{"secret.example.com", "a", "private"},
		{"secret.example.com", "b", "wide"},
		{"x.shop.example.com", "b", "narrow"},
		{"edge.test", "a", ""},
		{"both.test", "a", "both"},
	}
	for _, tc := range tests {
		got := ""
		if vs := m.VirtualServices.For(tc.host, tc.namespace); vs != nil {
			got = vs.Config.Name
		}
		if got != tc.want {
			t.Errorf("%s from %s: got %q, want %q", tc.host, tc.namespace, got, tc.want)
		}
	}
}

func TestDestinationRuleFor(t *testing.T) {
	t.Parallel()
	rule := func(namespace, name string, age int, spec *networkingv1alpha3.DestinationRule) *model.Config {
		return object(model.DestinationRule, namespace, name, age, spec)
	}
	m := objects{
		rule("client", "own", 0, &networkingv1alpha3.DestinationRule{Host: "*.svc.svc.cluster.local"}),
		rule("client", "exact", 0, &networkingv1alpha3.DestinationRule{Host: "web.svc.svc.cluster.local"}),
		rule("client", "selected", 5, &networkingv1alpha3.DestinationRule{
			Host: "web.svc.svc.cluster.local", WorkloadSelector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}},
		}),
		rule("client", "lent", 0, &networkingv1alpha3.DestinationRule{Host: "lent.svc.svc.cluster.local", ExportTo: []string{"third"}}),
		rule("svc", "service", 0, &networkingv1alpha3.DestinationRule{Host: "web"}),
		rule("svc", "hidden", 0, &networkingv1alpha3.DestinationRule{Host: "hidden", ExportTo: []string{"."}}),
		rule("svc", "half-hidden", 0, &networkingv1alpha3.DestinationRule{Host: "half", ExportTo: []string{"."}}),
		rule("svc", "half-shown", 1, &networkingv1alpha3.DestinationRule{Host: "half", ExportTo: []string{"*"}}),
		rule("svc", "service-selected", 0, &networkingv1alpha3.DestinationRule{
			Host: "web", WorkloadSelector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "x"}},
		}),
		rule("istio-system", "root", 0, &networkingv1alpha3.DestinationRule{Host: "*.cluster.local"}),
		rule("istio-system", "root-private", 0, &networkingv1alpha3.DestinationRule{Host: "web.svc.svc.cluster.local", ExportTo: []string{"istio-system"}}),
	}.build()
	x := map[string]string{"app": "x"}
	tests := []struct {
		host, namespace string
		labels          map[string]string
		want            string
	}{
		{"web.svc.svc.cluster.local", "client", nil, "exact"},
		{"web.svc.svc.cluster.local", "client", x, "selected"},
		{"other.svc.svc.cluster.local", "client", nil, "own"},
		{"web.svc.svc.cluster.local", "third", nil, "service"},
		{"web.svc.svc.cluster.local", "third", x, "service"},
		{"web.svc.svc.cluster.local", "svc", x, "service-selected"},
		{"hidden.svc.svc.cluster.local", "third", nil, "root"},
		{"hidden.svc.svc.cluster.local", "svc", nil, "hidden"},
		{"half.svc.svc.cluster.local", "svc", nil, "half-hidden"},
		{"half.svc.svc.cluster.local", "third", nil, "half-shown"},
		{"any.svc.svc.cluster.local", "third", nil, "root"},
		{"web.svc.svc.cluster.local", "istio-system", nil, "root-private"},
		{"half.svc.svc.cluster.local", "istio-system", nil, "half-shown"},
		{"lent.svc.svc.cluster.local", "client", nil, "own"},
		{"outside.example.com", "third", nil, ""},
	}
	for _, tc := range tests {
		got := ""
		if r := m.DestinationRules.For(model.ServiceKey{Hostname: tc.host, Namespace: "svc"}, tc.namespace, tc.labels); r != nil {
			got = r.From[0].Name
		}
		if got != tc.want {
			t.Errorf("%s from %s %v: got %q, want %q", tc.host, tc.namespace, tc.labels, got, tc.want)
		}
	}
}

func TestDestinationRulesMerge(t *testing.T) {
	t.Parallel()
	subset := func(name, version string) *networkingv1alpha3.Subset {
		return &networkingv1alpha3.Subset{Name: name, Labels: map[string]string{"version": version}}
	}
	policy := &networkingv1alpha3.TrafficPolicy{OutlierDetection: &networkingv1alpha3.OutlierDetection{}}
	m := objects{
		service("default", "web", "web.default.svc.cluster.local"),
		object(model.DestinationRule, "default", "b", 1, &networkingv1alpha3.DestinationRule{
			Host: "web.default.svc.cluster.local", TrafficPolicy: policy, Subsets: []*networkingv1alpha3.Subset{subset("v1", "other"), subset("v2", "2")},
		}),
		object(model.DestinationRule, "default", "a", 0, &networkingv1alpha3.DestinationRule{Host: "web", Subsets: []*networkingv1alpha3.Subset{subset("v1", "1")}}),
	}.build()
	r := m.DestinationRules.For(model.ServiceKey{Hostname: "web.default.svc.cluster.local", Namespace: "default"}, "x", nil)
	if len(r.Subsets) != 2 || r.Subset("v1").GetLabels()["version"] != "1" || r.Subset("v2") == nil || r.Policy != policy {
		t.Errorf("merged rule: got subsets %v, policy %v", r.Subsets, r.Policy)
	}
	if len(m.Problems) != 1 || m.Problems[0].Object.Name != "b" || !strings.Contains(m.Problems[0].Reason, `the subset "v1"`) {
		t.Errorf("problems: got %v, want one about subset v1 of b", m.Problems)
	}
}

func TestSidecarFor(t *testing.T) {
	t.Parallel()
	sidecar := func(namespace, name string, age int, labels map[string]string) *model.Config {
		spec := &networkingv1alpha3.Sidecar{}
		if labels != nil {
			spec.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: labels}
		}
		return object(model.Sidecar, namespace, name, age, spec)
	}
	m := objects{
		sidecar("istio-system", "root", 0, nil),
		sidecar("a", "namespace", 0, nil),
		sidecar("a", "younger", 2, map[string]string{"version": "v1"}),
		sidecar("a", "older", 1, map[string]string{"app": "web", "version": "v1"}),
	}.build()
	tests := []struct {
		namespace string
		labels    map[string]string
		want      string
	}{
		{"a", map[string]string{"app": "web", "version": "v1"}, "older"},
		{"a", map[string]string{"version": "v1"}, "younger"},
		{"a", map[string]string{"app": "web"}, "namespace"},
		{"b", map[string]string{"version": "v1"}, "root"},
	}
	for _, tc := range tests {
		if got := m.Sidecars.For(tc.namespace, tc.labels).Config.Name; got != tc.want {
			t.Errorf("%s %v: got %q, want %q", tc.namespace, tc.labels, got, tc.want)
		}
	}
	if sc := (objects{}).build().Sidecars.For("a", nil); sc != nil || !sc.Imports("x", "y") || sc.Ingress() != nil {
		t.Errorf("the implicit Sidecar: got %v", sc)
	}
}

func TestResolveHost(t *testing.T) {
	t.Parallel()
	m := objects{}.build()
	for host, want := range map[string]string{
		"web": "web.shop.svc.cluster.local", "Web": "web.shop.svc.cluster.local", "web.other": "web.other",
		"*": "*", "*.example.com": "*.example.com", "10.0.0.1": "10.0.0.1", "::1": "::1", "": "",
	} {
		if got := m.ResolveHost(host, "shop"); got != want {
			t.Errorf("ResolveHost(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	dest := func(host, subset string, port uint32) *networkingv1alpha3.HTTPRouteDestination {
		d := &networkingv1alpha3.Destination{Host: host, Subset: subset}
		if port != 0 {
			d.Port = &networkingv1alpha3.PortSelector{Number: port}
		}
		return &networkingv1alpha3.HTTPRouteDestination{Destination: d}
	}
	rule := object(model.DestinationRule, "default", "web", 0, &networkingv1alpha3.DestinationRule{
		Host: "web", Subsets: []*networkingv1alpha3.Subset{{Name: "v1"}},
	})
	tests := []struct {
		name string
		dest *networkingv1alpha3.HTTPRouteDestination
		want string // empty: no problem
	}{
		{"service", dest("web", "", 80), ""},
		{"full name and subset", dest("web.default.svc.cluster.local", "v1", 0), ""},
		{"no such host", dest("nobody", "", 0), `spec.http[0].route[0].destination.host: no service has the host "nobody.default.svc.cluster.local"`},
		{"no such port", dest("web", "", 81), `spec.http[0].route[0].destination.port.number: the service "web.default.svc.cluster.local" has no port 81`},
		{"no such subset", dest("web", "v2", 0), `spec.http[0].route[0].destination.subset: no DestinationRule for "web.default.svc.cluster.local" has the subset "v2"`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			vs := object(model.VirtualService, "default", "web", 0, &networkingv1alpha3.VirtualService{
				Hosts: []string{"web"}, Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{tc.dest}}},
			})
			base := objects{service("default", "web", "web.default.svc.cluster.local"), rule}
			before := base.build()
			m := Build(before, append(base, vs).input(), model.NewChange(vs.Key))
			if tc.want == "" {
				if len(m.Problems) != 0 {
					t.Errorf("problems: got %v, want none", m.Problems)
				}
				return
			}
			if len(m.Problems) != 1 || !strings.HasPrefix(m.Problems[0].Reason, tc.want) || m.Problems[0].Source != vs.Source || m.Problems[0].Object != vs.Key {
				t.Fatalf("problems: got %v, want %q", m.Problems, tc.want)
			}
			if fixed := Build(m, base.input(), model.NewChange(vs.Key)); len(fixed.Problems) != 0 {
				t.Errorf("problems after the correction: got %v, want none", fixed.Problems)
			}
		})
	}
}
