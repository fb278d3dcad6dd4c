// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// objects is a list of objects that a test uses as a store.
type objects []*model.Config

// object returns an object. Objects are ordered by age; the oldest has age 0.
func object(kind model.Kind, namespace, name string, age int, spec proto.Message) *model.Config {
	return &model.Config{
		Key:     model.Key{Kind: kind, Namespace: namespace, Name: name},
		Created: time.Date(2024, 1, 1+age, 0, 0, 0, 0, time.UTC), Source: name + ".yaml:1", Spec: spec,
	}
}

func (o objects) input() Input {
	return Input{Mesh: &meshv1alpha1.MeshConfig{}, List: func(kind model.Kind) []*model.Config {
		var out []*model.Config
		for _, c := range o {
			if c.Kind == kind {
				out = append(out, c)
			}
		}
		slices.Reverse(out) // List may return any order
		return out
	}}
}

func (o objects) build() *Mesh { return Build(nil, o.input(), model.Change{All: true}) }

// replace returns the objects, with c instead of the object with the same key.
func (o objects) replace(c *model.Config) objects {
	out := slices.DeleteFunc(slices.Clone(o), func(x *model.Config) bool { return x.Key == c.Key })
	return append(out, c)
}

func service(namespace, name, host string) *model.Config {
	return object(model.ServiceEntry, namespace, name, 0, &networkingv1alpha3.ServiceEntry{
		Hosts: []string{host}, Location: networkingv1alpha3.ServiceEntry_MESH_INTERNAL, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
		Ports:            []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
		WorkloadSelector: &networkingv1alpha3.WorkloadSelector{Labels: map[string]string{"app": name}},
	})
}

func workload(namespace, app, name, address, account string) *model.Config {
	return object(model.WorkloadEntry, namespace, name, 0, &networkingv1alpha3.WorkloadEntry{
		Address: address, ServiceAccount: account, Labels: map[string]string{"app": app},
	})
}

func shop() objects {
	return objects{
		service("default", "catalog", "catalog.default.svc.cluster.local"),
		service("default", "orders", "orders.default.svc.cluster.local"),
		workload("default", "catalog", "catalog-1", "10.0.0.1", "catalog"),
		workload("default", "orders", "orders-1", "10.0.0.2", "orders"),
		object(model.VirtualService, "default", "catalog", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"catalog"}}),
		object(model.DestinationRule, "default", "catalog", 0, &networkingv1alpha3.DestinationRule{Host: "catalog"}),
		object(model.DestinationRule, "default", "orders", 0, &networkingv1alpha3.DestinationRule{Host: "orders"}),
		object(model.PeerAuthentication, "default", "default", 0, peer(strict, nil)),
		object(model.Sidecar, "default", "default", 0, &networkingv1alpha3.Sidecar{}),
		object(model.ServiceEntry, "default", "dns", 0, &networkingv1alpha3.ServiceEntry{
			Hosts: []string{"dns.example.com"}, Resolution: networkingv1alpha3.ServiceEntry_DNS,
			Ports:     []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networkingv1alpha3.WorkloadEntry{{Address: "one.example.com"}},
		}),
	}
}

// indexes returns the indexes of a snapshot by name.
func indexes(m *Mesh) map[string]any {
	return map[string]any{
		"services": m.Services, "endpoints": m.Endpoints, "named endpoints": m.NamedEndpoints, "accounts": m.Accounts,
		"virtual services": m.VirtualServices, "destination rules": m.DestinationRules,
		"peer authentications": m.PeerAuthentications, "sidecars": m.Sidecars, "config": m.Config,
	}
}

func TestBuildKeepsWhatDidNotChange(t *testing.T) {
	t.Parallel()
	vs := object(model.VirtualService, "default", "catalog", 0, &networkingv1alpha3.VirtualService{Hosts: []string{"catalog", "c"}})
	dr := object(model.DestinationRule, "default", "catalog", 0, &networkingv1alpha3.DestinationRule{Host: "catalog", TrafficPolicy: &networkingv1alpha3.TrafficPolicy{}})
	dns := model.CloneSpec(shop()[9].Spec).(*networkingv1alpha3.ServiceEntry)
	dns.Endpoints[0].Address = "two.example.com"
	tests := []struct {
		name    string
		changed *model.Config
		want    []string // the rebuilt indexes
	}{
		{"same endpoint again", workload("default", "catalog", "catalog-1", "10.0.0.1", "catalog"), nil},
		{"endpoint moved", workload("default", "catalog", "catalog-1", "10.0.0.9", "catalog"), []string{"endpoints"}},
		{"account changed", workload("default", "catalog", "catalog-1", "10.0.0.1", "new"), []string{"accounts", "endpoints"}},
		{"second replica", workload("default", "catalog", "catalog-2", "10.0.0.9", "catalog"), []string{"endpoints"}},
		{"service changed", service("default", "catalog", "catalog.example.com"), []string{"accounts", "endpoints", "services"}},
		{"service added", service("default", "new", "new.example.com"), []string{"services"}},
		{"DNS endpoint", object(model.ServiceEntry, "default", "dns", 0, dns), []string{"named endpoints"}},
		{"VirtualService", vs, []string{"virtual services"}},
		{"DestinationRule", dr, []string{"destination rules"}},
		{"PeerAuthentication", object(model.PeerAuthentication, "default", "default", 0, peer(disable, nil)), []string{"peer authentications"}},
		{"Sidecar", object(model.Sidecar, "other", "default", 0, &networkingv1alpha3.Sidecar{}), []string{"sidecars"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			before := shop().build()
			for _, change := range []model.Change{model.NewChange(tc.changed.Key), {All: true}} {
				after := Build(before, shop().replace(tc.changed).input(), change)
				var got []string
				for name, index := range indexes(after) {
					if index != indexes(before)[name] {
						got = append(got, name)
					}
				}
				slices.Sort(got)
				if !slices.Equal(got, tc.want) {
					t.Errorf("change %v: rebuilt indexes: got %v, want %v", change, got, tc.want)
				}
				if after.Sequence != before.Sequence+1 {
					t.Errorf("Sequence = %d after %d, want the next number", after.Sequence, before.Sequence)
				}
			}
		})
	}
}

func TestBuildListsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	before := shop().build()
	in := shop().input()
	list := in.List
	in.List = func(kind model.Kind) []*model.Config {
		if kind != model.VirtualService {
			t.Errorf("Build listed the kind %s, which has not changed", kind)
		}
		return list(kind)
	}
	Build(before, in, model.NewChange(model.Key{Kind: model.VirtualService, Namespace: "default", Name: "catalog"}))
}

func TestUnchangedPointersStay(t *testing.T) {
	t.Parallel()
	before := shop().build()
	after := Build(before, shop().replace(workload("default", "catalog", "catalog-1", "10.0.0.9", "catalog")).
		replace(object(model.DestinationRule, "default", "catalog", 0, &networkingv1alpha3.DestinationRule{Host: "catalog", ExportTo: []string{"."}})).
		input(), model.Change{All: true})
	orders, catalog := before.Services.ForHost("orders.default.svc.cluster.local", ""), before.Services.ForHost("catalog.default.svc.cluster.local", "")
	if before.Endpoints.Of(orders.ServiceKey) != after.Endpoints.Of(orders.ServiceKey) {
		t.Error("the endpoints of orders were rebuilt although they did not change")
	}
	if before.Endpoints.Of(catalog.ServiceKey) == after.Endpoints.Of(catalog.ServiceKey) {
		t.Error("the endpoints of catalog were not rebuilt although they changed")
	}
	rule := func(m *Mesh, svc *model.Service) *DestinationRule {
		return m.DestinationRules.For(svc.ServiceKey, "default", nil)
	}
	if rule(before, orders) != rule(after, orders) || rule(before, catalog) == rule(after, catalog) {
		t.Error("the pointer of a rule changed without its content, or the other way round")
	}
}

func TestMeshSettingsRebuildAll(t *testing.T) {
	t.Parallel()
	objs := append(shop(), object(model.PeerAuthentication, "elsewhere", "default", 0, peer(disable, nil)))
	before := objs.build()
	in := objs.input()
	in.Mesh = &meshv1alpha1.MeshConfig{RootNamespace: "elsewhere"}
	after := Build(before, in, model.NewChange(model.Key{Kind: model.MeshConfigKind}))
	if before.PeerAuthentications.Mode("x", nil, 80) != MutualTLSPermissive || after.PeerAuthentications.Mode("x", nil, 80) != MutualTLSDisabled {
		t.Error("the new root namespace is not in use")
	}
}

func TestVisibleServices(t *testing.T) {
	t.Parallel()
	objs := objects{
		service("a", "x", "shared.example.com"), service("b", "x", "shared.example.com"), service("b", "y", "other.example.com"),
		object(model.Sidecar, "c", "default", 0, &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{
			{Hosts: []string{"./*", "b/shared.*"}}, {Hosts: []string{"*/other.example.com"}},
		}}),
		object(model.Sidecar, "d", "default", 0, &networkingv1alpha3.Sidecar{Egress: []*networkingv1alpha3.IstioEgressListener{{Hosts: []string{"~/*"}}}}),
	}
	m := objs.build()
	tests := map[string]string{
		"b": "b/other.example.com b/shared.example.com",
		"e": "b/other.example.com a/shared.example.com",
		"c": "b/other.example.com",
		"d": "",
	}
	for namespace, want := range tests {
		var got []string
		for _, svc := range m.Services.Visible(namespace, m.Sidecars.For(namespace, nil)) {
			got = append(got, svc.Namespace+"/"+svc.Hostname)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("services visible to %s: got %q, want %q", namespace, s, want)
		}
	}
}
