// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	metav1alpha1 "istio.io/api/meta/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// state is the input of the snapshots in a test.
type state struct {
	objects  objects
	platform platform
	config   *meshv1alpha1.MeshConfig
	networks *meshv1alpha1.MeshNetworks
	roots    []byte
}

func newState() *state {
	return &state{
		objects: shop(), platform: platform{}.with("a", "a", "10.1.0.1").with("b", "b", "10.1.1.1"), config: &meshv1alpha1.MeshConfig{}, roots: []byte("roots"),
		networks: &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"one": gatewayAt("192.0.2.1")}},
	}
}

func (s *state) input() Input {
	in := s.objects.input()
	in.Platform, in.Mesh, in.Networks, in.Roots = s.platform, s.config, s.networks, s.roots
	return in
}

func gatewayAt(address string) *meshv1alpha1.Network {
	return &meshv1alpha1.Network{Gateways: []*meshv1alpha1.Network_IstioNetworkGateway{
		{Port: 15443, Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: address}},
	}}
}

// rewrite replaces an object with a modified copy, like a store.
func (s *state) rewrite(kind model.Kind, name string, alter func(*model.Config)) model.Change {
	for i, c := range s.objects {
		if c.Kind == kind && c.Name == name {
			s.objects = slices.Clone(s.objects)
			s.objects[i] = c.Clone()
			alter(s.objects[i])
		}
	}
	return model.NewChange(model.Key{Kind: kind, Namespace: "default", Name: name})
}

// service replaces the definition of a service of the platform.
func (s *state) service(name string, alter func(*model.Service)) model.Change {
	p, svc := *s.platform[name], *s.platform[name].Service
	alter(&svc)
	p.Service = &svc
	s.platform = maps.Clone(s.platform)
	s.platform[name] = &p
	return model.NewChange(model.Key{Kind: model.KubernetesService, Namespace: "default", Name: name})
}

// alteration is an event and the indexes that it rebuilds.
type alteration struct {
	event func(s *state) model.Change
	want  []string
}

// everything is a change after which all objects must be read again.
var everything = model.Change{All: true}

// TestRebuiltByEvent checks which indexes are rebuilt after each kind of event, because proxies
// receive only what depends on these. An event without new content must rebuild none.
func TestRebuiltByEvent(t *testing.T) {
	t.Parallel()
	alters(t, map[string]alteration{
		// A Service is added, updated, deleted.
		"service added": {func(s *state) model.Change {
			s.platform = s.platform.with("c", "c")
			return model.NewChange(model.Key{Kind: model.KubernetesService, Namespace: "default", Name: "c"})
		}, []string{"services"}},
		"service with another port": {func(s *state) model.Change {
			return s.service("a", func(svc *model.Service) {
				svc.Ports = append(slices.Clone(svc.Ports), model.Port{Name: "x", Number: 90})
			})
		}, []string{"services"}},
		"service with another label": {func(s *state) model.Change {
			return s.service("a", func(svc *model.Service) { svc.Labels = map[string]string{"app": "a"} })
		}, []string{"services"}},
		"service with another external address": {func(s *state) model.Change {
			return s.service("a", func(svc *model.Service) { svc.ExternalAddresses = map[string][]string{"c": {"192.0.2.9"}} })
		}, []string{"services"}},
		"service with another cluster address": {func(s *state) model.Change {
			return s.service("a", func(svc *model.Service) { svc.ClusterAddresses = map[string][]string{"c": {"10.96.0.1"}} })
		}, []string{"services"}},
		"service with another distribution": {func(s *state) model.Change {
			return s.service("a", func(svc *model.Service) { svc.Distribution = model.PreferSameZone })
		}, []string{"services"}},
		"unchanged service":         {func(s *state) model.Change { return s.service("a", func(*model.Service) {}) }, nil},
		"service without endpoints": {func(s *state) model.Change { s.platform = s.platform.with("a", "a"); return endpointsChange("a") }, []string{"endpoints"}},
		"service deleted": {func(s *state) model.Change {
			s.platform = maps.Clone(s.platform)
			delete(s.platform, "a")
			return model.NewChange(model.Key{Kind: model.KubernetesService, Namespace: "default", Name: "a"})
		}, []string{"accounts", "endpoints", "services"}},
		// Configuration: only the spec matters, not the metadata.
		"config": {func(s *state) model.Change {
			return s.rewrite(model.VirtualService, "catalog", func(c *model.Config) { c.Spec.(*networkingv1alpha3.VirtualService).ExportTo = []string{"."} })
		}, []string{"virtual services"}},
		"status and metadata of config": {func(s *state) model.Change {
			return s.rewrite(model.VirtualService, "catalog", func(c *model.Config) {
				c.Status, c.ResourceVersion, c.Labels = &metav1alpha1.IstioStatus{ObservedGeneration: 7}, "9", map[string]string{"istio.io/rev": "x"}
				c.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}"}
			})
		}, nil},
		"status of a ServiceEntry": {func(s *state) model.Change {
			return s.rewrite(model.ServiceEntry, "dns", func(c *model.Config) { c.Status = &metav1alpha1.IstioStatus{ObservedGeneration: 7} })
		}, nil},
		"resolution of a ServiceEntry": {func(s *state) model.Change {
			return s.rewrite(model.ServiceEntry, "dns", func(c *model.Config) {
				c.Spec.(*networkingv1alpha3.ServiceEntry).Resolution = networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN
			})
		}, []string{"services"}},
		"WorkloadGroup": {func(*state) model.Change {
			return model.NewChange(model.Key{Kind: model.WorkloadGroup, Namespace: "default", Name: "x"})
		}, nil},
		// Endpoints: a change of the address, and one of the identity.
		"endpoint": {func(s *state) model.Change {
			s.platform = s.platform.with("a", "a", "10.1.0.2")
			return endpointsChange("a")
		}, []string{"endpoints"}},
		"unchanged endpoint": {func(s *state) model.Change {
			s.platform = s.platform.with("a", "a", "10.1.0.1")
			return endpointsChange("a")
		}, nil},
		"identity": {func(s *state) model.Change {
			s.platform = s.platform.with("a", "z", "10.1.0.1")
			return endpointsChange("a")
		}, []string{"accounts", "endpoints"}},
		"workload relabelled": {func(s *state) model.Change {
			return s.rewrite(model.WorkloadEntry, "catalog-1", func(c *model.Config) { c.Labels = map[string]string{"version": "2"} })
		}, []string{"endpoints"}},
		"pod that no service selects": {func(*state) model.Change {
			return model.NewChange(model.Key{Kind: model.KubernetesPod, Namespace: "default", Name: "p"})
		}, nil},
	})
}

// TestRebuiltBySetting checks the same for mesh settings, roots and clusters.
func TestRebuiltBySetting(t *testing.T) {
	t.Parallel()
	alters(t, map[string]alteration{
		// Mesh config, networks, trust.
		"mesh config": {func(s *state) model.Change { s.config = &meshv1alpha1.MeshConfig{ProxyHttpPort: 1}; return everything }, []string{"config"}},
		"cluster-local services": {func(s *state) model.Change {
			s.config = &meshv1alpha1.MeshConfig{ServiceSettings: []*meshv1alpha1.MeshConfig_ServiceSettings{{Hosts: []string{"*.x"}, Settings: &meshv1alpha1.MeshConfig_ServiceSettings_Settings{ClusterLocal: true}}}}
			return everything
		}, []string{"cluster local", "config"}},
		"equal mesh config": {func(s *state) model.Change { s.config = &meshv1alpha1.MeshConfig{}; return everything }, nil},
		"networks": {func(s *state) model.Change {
			s.networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"one": gatewayAt("192.0.2.2")}}
			return model.NewChange(model.Key{Kind: model.MeshConfigKind})
		}, []string{"networks"}},
		"equal networks": {func(s *state) model.Change {
			s.networks = &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{"one": gatewayAt("192.0.2.1")}}
			return everything
		}, nil},
		"roots":       {func(s *state) model.Change { s.roots = []byte("others"); return model.Change{} }, []string{"trust"}},
		"equal roots": {func(s *state) model.Change { s.roots = []byte("roots"); return everything }, nil},
		// A cluster is added or removed, and a push is requested.
		"cluster": {func(s *state) model.Change {
			s.platform = s.platform.with("a", "a", "10.1.0.1", "10.2.0.1")
			return everything
		}, []string{"endpoints"}},
		"nothing": {func(*state) model.Change { return everything }, nil},
	})
}

func alters(t *testing.T, events map[string]alteration) {
	t.Helper()
	for name, c := range events {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newState()
			before := Build(nil, s.input(), everything)
			change := c.event(s)
			after := Build(before, s.input(), change)
			was, is := allIndexes(before), allIndexes(after)
			var got []string
			for index := range is {
				if is[index] != was[index] {
					got = append(got, index)
				}
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("rebuilt indexes: got %v, want %v", got, c.want)
			}
		})
	}
}

// allIndexes returns the parts of a snapshot that generators compare.
func allIndexes(m *Mesh) map[string]any {
	all := indexes(m)
	all["networks"], all["cluster local"], all["trust"] = m.Networks, m.ClusterLocal, m.Trust
	return all
}

// TestClusterLocal checks that services of the system, the API server and the control plane are
// cluster-local unless the settings exclude them.
func TestClusterLocal(t *testing.T) {
	t.Parallel()
	setting := func(local bool, hosts ...string) *meshv1alpha1.MeshConfig_ServiceSettings {
		return &meshv1alpha1.MeshConfig_ServiceSettings{Hosts: hosts, Settings: &meshv1alpha1.MeshConfig_ServiceSettings_Settings{ClusterLocal: local}}
	}
	discovery := &meshv1alpha1.ProxyConfig{DiscoveryAddress: "istiod.istio-system.svc:15012"}
	for _, c := range []struct {
		name     string
		settings []*meshv1alpha1.MeshConfig_ServiceSettings
		local    []string
		shared   []string
	}{
		{"default", nil, []string{"kube-dns.kube-system.svc.mesh.local", "kubernetes.default.svc.mesh.local", "istiod.istio-system.svc.mesh.local"}, []string{"a.default.svc.mesh.local", "kube-system.svc.mesh.local"}},
		{"more", []*meshv1alpha1.MeshConfig_ServiceSettings{setting(true, "*.Shop.svc.mesh.local", "one.b.svc.mesh.local")}, []string{"a.shop.svc.mesh.local", "one.b.svc.mesh.local", "x.kube-system.svc.mesh.local"}, []string{"two.b.svc.mesh.local"}},
		{"everything", []*meshv1alpha1.MeshConfig_ServiceSettings{setting(true, "*")}, []string{"a.shop.svc.mesh.local"}, nil},
		{
			"less",
			[]*meshv1alpha1.MeshConfig_ServiceSettings{setting(false, "x.kube-system.svc.mesh.local", "kubernetes.default.svc.mesh.local")},
			[]string{"istiod.istio-system.svc.mesh.local"},
			[]string{"x.kube-system.svc.mesh.local", "y.kube-system.svc.mesh.local", "kubernetes.default.svc.mesh.local"},
		},
	} {
		local := newClusterLocal(nil, &meshv1alpha1.MeshConfig{DefaultConfig: discovery, ServiceSettings: c.settings}, "mesh.local")
		for _, host := range c.local {
			if !local.Has(host) {
				t.Errorf("%s: Has(%s) = false, want true", c.name, host)
			}
		}
		for _, host := range c.shared {
			if local.Has(host) {
				t.Errorf("%s: Has(%s) = true, want false", c.name, host)
			}
		}
	}
	if (*ClusterLocal)(nil).Has("kubernetes.default.svc.mesh.local") {
		t.Error("Has() = true for nil")
	}
}
