// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// networksOf returns networks with the given clusters and ranges as members. Only the network "one"
// has gateways.
func networksOf(members map[string][]string, gateways ...string) *meshv1alpha1.MeshNetworks {
	out := &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{}}
	for name, list := range members {
		n := &meshv1alpha1.Network{}
		for _, m := range list {
			e := &meshv1alpha1.Network_NetworkEndpoints{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromRegistry{FromRegistry: m}}
			if strings.Contains(m, "/") {
				e.Ne = &meshv1alpha1.Network_NetworkEndpoints_FromCidr{FromCidr: m}
			}
			n.Endpoints = append(n.Endpoints, e)
		}
		out.Networks[name] = n
	}
	for _, g := range gateways {
		gw := &meshv1alpha1.Network_IstioNetworkGateway{Port: 15443, Gw: &meshv1alpha1.Network_IstioNetworkGateway_Address{Address: g}}
		if strings.HasSuffix(g, ".svc") {
			gw.Gw = &meshv1alpha1.Network_IstioNetworkGateway_RegistryServiceName{RegistryServiceName: g}
		}
		out.Networks["one"].Gateways = append(out.Networks["one"].Gateways, gw)
	}
	return out
}

func TestNetworkOfEndpoints(t *testing.T) {
	t.Parallel()
	f := newNetworkFinder(networksOf(map[string][]string{"one": {"c1", "10.0.0.0/8"}, "two": {"10.1.0.0/16", "fd00::/8"}, "wide": {"c1", "nonsense/8"}}))
	for _, c := range []struct{ cluster, address, want string }{
		{"c1", "192.0.2.1", "one"},
		{"c1", "10.1.0.1", "one"}, // the cluster takes precedence
		{"c2", "10.2.0.1", "one"},
		{"", "10.1.0.1", "two"},
		{"", "::ffff:10.1.0.1", "two"},
		{"", "fd00::1", "two"},
		{"c2", "192.0.2.1", ""},
		{"", "host.example.com", ""},
		{"", "unix:///x", ""},
	} {
		if got := f.of(c.cluster, c.address); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
	var problems []string
	for _, p := range f.problems {
		problems = append(problems, p.String())
	}
	want := []string{
		`MeshConfig//meshNetworks: fromRegistry "c1" is in the networks "one" and "wide", and belongs to "one": keep it in one of them`,
		`MeshConfig//meshNetworks: fromCidr of the network "wide" is "nonsense/8", which is not a range and is ignored: write one such as 10.0.0.0/8`,
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// TestNetworksAreAssigned checks that an endpoint with an explicit network keeps it, and that the
// input is not modified.
func TestNetworksAreAssigned(t *testing.T) {
	t.Parallel()
	f := newNetworkFinder(networksOf(map[string][]string{"one": {"c1"}, "two": {"10.0.0.0/8"}}))
	list := []*model.Endpoint{
		{Address: "10.0.0.1", Labels: map[string]string{"app": "a"}},
		{Address: "10.0.0.2", Network: "own"},
		{Address: "192.0.2.1", Cluster: "c1"},
		{Address: "192.0.2.2"},
	}
	out := f.assign(list)
	var got []string
	for _, e := range out {
		got = append(got, fmt.Sprint(e.Address, " ", e.Network, " ", e.Labels[networkLabel]))
	}
	if want := []string{"10.0.0.1 two two", "10.0.0.2 own ", "192.0.2.1 one ", "192.0.2.2  "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if list[0].Network != "" || len(list[0].Labels) != 1 {
		t.Errorf("the input was modified: %+v", list[0])
	}
	if none := newNetworkFinder(nil).assign(list); &none[0] != &list[0] {
		t.Error("assign() without networks returned a different list")
	}
	// Two clusters may use the same addresses if they are in different networks.
	same := SortOfClusters([]*model.Endpoint{{Address: "10.0.0.1", Cluster: "c1"}, {Address: "10.0.0.1", Cluster: "c1"}, {Address: "10.0.0.1", Cluster: "c2"}})
	for clusters, want := range map[string]int{"c1": 2, "c3": 1} {
		if got := newNetworkFinder(networksOf(map[string][]string{"one": {clusters}})).assign(same); len(got) != want || len(same) != 2 {
			t.Errorf("network of %s: got %d of %d endpoints, want %d", clusters, len(got), len(same), want)
		}
	}
	if got := newNetworkFinder(nil).assign(same); len(got) != 1 || len(same) != 2 {
		t.Errorf("without networks: got %d endpoints, want 1", len(got))
	}
}

func TestNetworkGateways(t *testing.T) {
	t.Parallel()
	w := newWorld()
	service := func(name string, external map[string][]string, ports map[string]map[uint32]uint32) *PlatformService {
		return &PlatformService{Name: name, Service: &model.Service{
			ServiceKey: model.ServiceKey{Hostname: name + ".a.svc", Namespace: "a"}, Registry: model.RegistryKubernetes, ExternalAddresses: external, ExternalPorts: ports,
		}}
	}
	w.services[objectName{"a", "east"}] = service("east", map[string][]string{"c1": {"192.0.2.7", "lb.example.com"}, "c2": {"192.0.2.8"}}, map[string]map[uint32]uint32{"c1": {15443: 30443}})
	labelled := service("label", nil, nil)
	labelled.Gateways = []model.NetworkGateway{{Network: "two", Cluster: "c2", Address: "192.0.2.9", Port: 15443}, {Network: "two", Cluster: "c3", Address: "192.0.2.10", Port: 15443}}
	w.services[objectName{"a", "label"}] = labelled
	w.networks = networksOf(map[string][]string{"one": {"c1"}}, "192.0.2.1", "east.a.svc", "unknown.a.svc", "gw.example.com")
	s := Build(w.input())
	show := func(list []model.NetworkGateway) (out string) {
		for _, g := range list {
			out += fmt.Sprintf("%s/%s=%s:%d ", g.Network, g.Cluster, g.Address, g.Port)
		}
		return strings.TrimSpace(out)
	}
	for _, c := range []struct{ network, cluster, want string }{
		{"one", "", "one/=192.0.2.1:15443 one/c1=192.0.2.7:30443"},
		{"one", "c1", "one/c1=192.0.2.7:30443"},
		{"two", "c3", "two/c3=192.0.2.10:15443"},
		{"two", "c4", "two/c2=192.0.2.9:15443 two/c3=192.0.2.10:15443"},
		{"three", "c1", ""},
		{"", "c1", ""},
	} {
		if got := show(s.Networks.Gateways(c.network, c.cluster)); got != c.want {
			t.Errorf("Gateways(%q, %q) = %q, want %q", c.network, c.cluster, got, c.want)
		}
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Reason, `"gw.example.com"`) {
		t.Errorf("problems: got %v, want one about gw.example.com", s.Problems)
	}
	if s.Networks.Scale() != 2 || !s.Networks.Any() {
		t.Errorf("Scale() = %d, want 2", s.Networks.Scale())
	}
	var none *Networks
	if none.Any() || none.Scale() != 1 || none.All() != nil || none.Gateways("one", "") != nil || !none.Equal(&Networks{}) {
		t.Error("nil does not behave like an empty Networks")
	}
}

// TestScale checks that the factor is divisible by all numbers of gateways, as far as it does not
// overflow.
func TestScale(t *testing.T) {
	t.Parallel()
	var all []model.NetworkGateway
	for network := range 200 {
		for i := range network + 1 {
			all = append(all, model.NetworkGateway{Network: fmt.Sprint(network), Address: fmt.Sprint(i)})
		}
		n := newNetworks(slices.Clone(all))
		for count := range network + 1 {
			if n.Scale()%uint32(count+1) != 0 && n.Scale() < maxScale/200 {
				t.Errorf("%d networks: scale %d is not divisible by %d", network, n.Scale(), count+1)
			}
		}
		if n.Scale() > maxScale || n.Scale() < uint32(min(network, 1)) {
			t.Errorf("%d networks: scale %d is out of bounds", network, n.Scale())
		}
	}
}
