// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

func kubeService(host, namespace string, addresses ...string) *model.Service {
	return &model.Service{
		ServiceKey: model.ServiceKey{Hostname: host, Namespace: namespace}, Registry: model.RegistryKubernetes, Addresses: addresses,
		Headless: len(addresses) == 0, Ports: []model.Port{{Name: "http", Number: 80, Protocol: model.ProtocolHTTP}},
	}
}

func TestHostOf(t *testing.T) {
	t.Parallel()
	const registry = nds.Kubernetes
	for name, tc := range map[string]struct {
		services []*model.Service
		want     map[string]nds.Host
	}{
		"Kubernetes": {
			[]*model.Service{kubeService("reviews.shop.svc.cluster.local", "shop", "10.0.0.7", "fd00::7")},
			map[string]nds.Host{"reviews.shop.svc.cluster.local": {IPs: []string{"10.0.0.7", "fd00::7"}, Registry: registry, Shortname: "reviews", Namespace: "shop"}},
		},
		"cluster set": {
			[]*model.Service{kubeService("reviews.shop.svc.clusterset.local", "shop", "10.0.0.7")},
			map[string]nds.Host{"reviews.shop.svc.clusterset.local": {IPs: []string{"10.0.0.7"}, Registry: registry}},
		},
		"cluster set, by cluster": {
			[]*model.Service{{
				ServiceKey: model.ServiceKey{Hostname: "reviews.shop.svc.clusterset.local", Namespace: "shop"}, Registry: model.RegistryKubernetes,
				Addresses: []string{"10.0.0.7"}, ClusterAddresses: map[string][]string{"far": {"10.0.0.7"}, "": {"10.0.0.8"}},
			}},
			map[string]nds.Host{"reviews.shop.svc.clusterset.local": {IPs: []string{"10.0.0.8"}, Registry: registry}},
		},
		"external": {
			[]*model.Service{{ServiceKey: model.ServiceKey{Hostname: "*.example.com", Namespace: "shop"}, Addresses: []string{"10.0.0.0/8", "240.0.0.1"}}},
			map[string]nds.Host{"*.example.com": {IPs: []string{"240.0.0.1"}, Registry: "External"}},
		},
		"no address":         {[]*model.Service{{ServiceKey: model.ServiceKey{Hostname: "a.example.com"}}}, map[string]nds.Host{}},
		"only a range":       {[]*model.Service{{ServiceKey: model.ServiceKey{Hostname: "a.example.com"}, Addresses: []string{"10.0.0.0/8"}}}, map[string]nds.Host{}},
		"resolved elsewhere": {[]*model.Service{{ServiceKey: model.ServiceKey{Hostname: "a.b.svc.cluster.local"}, Registry: model.RegistryKubernetes, Resolution: model.ResolutionDNS}}, map[string]nds.Host{}},
		"no UTF-8":           {[]*model.Service{kubeService("\xff.shop.svc.cluster.local", "shop", "10.0.0.7")}, map[string]nds.Host{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, tableOf(&model.Proxy{}, tc.services, &snapshot.Endpoints{}).Hosts); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestHeadless checks that the name of a headless service resolves to its pods, and that named
// pods have their own names.
func TestHeadless(t *testing.T) {
	t.Parallel()
	const host = "mysql.shop.svc.cluster.local"
	svc := kubeService(host, "shop")
	pod := func(address, hostname string, port uint32) *model.Endpoint {
		return &model.Endpoint{Address: address, Hostname: hostname, ServicePort: port}
	}
	set := &snapshot.EndpointSet{List: []*model.Endpoint{
		pod("10.1.0.2", "mysql-1.mysql", 80), pod("10.1.0.1", "mysql-0.mysql", 80), pod("10.1.0.3", "", 80), pod("db.example.com", "x.mysql", 80),
		pod("10.1.0.1", "mysql-0.mysql", 81), pod("10.1.0.2", "mysql-1.mysql", 81),
	}}
	table := &nds.Table{Hosts: map[string]nds.Host{"mysql-1.mysql.shop.svc.cluster.local": {IPs: []string{"192.0.2.1"}, Registry: "External"}}}
	hidden := pod("10.2.0.1", "mysql-2.mysql", 80)
	hidden.Cluster, hidden.Unexported = "far", true
	set.List = append(set.List, hidden)
	ips := podsOf(table, &model.Proxy{ClusterID: "own"}, svc, set)
	if diff := cmp.Diff([]string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}, ips); diff != "" {
		t.Errorf("addresses of the service (-want +got):\n%s", diff)
	}
	want := map[string]nds.Host{
		"mysql-0.mysql.shop.svc.cluster.local": {IPs: []string{"10.1.0.1"}, Registry: nds.Kubernetes, Shortname: "mysql-0.mysql", Namespace: "shop"},
		"mysql-1.mysql.shop.svc.cluster.local": {IPs: []string{"10.1.0.2"}, Registry: nds.Kubernetes, Shortname: "mysql-1.mysql", Namespace: "shop"},
	}
	if diff := cmp.Diff(want, table.Hosts); diff != "" {
		t.Errorf("names of the pods (-want +got):\n%s", diff)
	}
}

// TestNameOfPodAndServiceEntry checks that names of Kubernetes take precedence over those of a
// ServiceEntry.
func TestNameOfPodAndServiceEntry(t *testing.T) {
	t.Parallel()
	pod := kubeService("a-0.a.shop.svc.cluster.local", "shop", "10.0.0.1")
	entry := &model.Service{ServiceKey: model.ServiceKey{Hostname: pod.Hostname, Namespace: "other"}, Addresses: []string{"192.0.2.1"}}
	for _, order := range [][]*model.Service{{pod, entry}, {entry, pod}} {
		if got := tableOf(&model.Proxy{}, order, &snapshot.Endpoints{}).Hosts[pod.Hostname].IPs; len(got) != 1 || got[0] != "10.0.0.1" {
			t.Errorf("got %v", got)
		}
	}
}

// TestNameTableIsShared checks that proxies with the same Sidecar scope share the table, and that
// unrelated changes do not affect it.
func TestNameTableIsShared(t *testing.T) {
	t.Parallel()
	const entries = `
kind: ServiceEntry
metadata: {name: a, namespace: default}
spec: {hosts: [a.example.com], addresses: [240.0.0.1], resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 127.0.0.1}]}
---
kind: ServiceEntry
metadata: {name: hidden, namespace: bank}
spec: {hosts: [hidden.example.com], addresses: [240.0.0.2], resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 127.0.0.1}]}
---
kind: Sidecar
metadata: {name: default, namespace: default}
spec: {egress: [{hosts: ["./*"]}]}
`
	objects := decode(t, entries)
	mesh := snapshot.Build(nil, inputOf(objects, meshconfig.Default()), model.Change{All: true})
	g, one, two := New(Config{}), proxyAt("10.0.0.1"), proxyAt("10.0.0.2")
	set := g.Generate(mesh, one, xds.TypeNameTable)
	if diff := cmp.Diff(map[string]nds.Host{"a.example.com": {IPs: []string{"240.0.0.1"}, Registry: "External"}}, nameTableOf(t, set).Hosts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if g.Generate(mesh, two, xds.TypeNameTable) != set {
		t.Error("two proxies with the same Sidecar scope do not share the table")
	}
	more := decode(t, `
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: STRICT}}
`)
	next := snapshot.Build(mesh, inputOf(append(objects, more...), meshconfig.Default()), model.Change{All: true})
	if g.Generate(next, one, xds.TypeNameTable) != set {
		t.Error("the table is new although no service changed")
	}
	router := proxyAt("10.0.0.3")
	router.Role = "router"
	if n := len(g.Generate(mesh, router, xds.TypeNameTable).Resources); n != 0 {
		t.Errorf("a router gets %d name tables", n)
	}
}

// TestAllocatedNames checks that proxies receive addresses that were allocated to a service only
// if their agents resolve names and request it, in the IP families that they support.
func TestAllocatedNames(t *testing.T) {
	t.Parallel()
	in := inputOf(decode(t, `
kind: ServiceEntry
metadata: {name: a, namespace: default}
spec: {hosts: [a.example.com], resolution: DNS, ports: [{number: 5432, name: tcp}]}
---
kind: ServiceEntry
metadata: {name: b, namespace: default}
spec: {hosts: [b.example.com, "*.wild.example.com"], resolution: NONE, ports: [{number: 5432, name: tcp}]}
`), meshconfig.Default())
	mesh := snapshot.Build(nil, in, model.Change{All: true})
	g := New(Config{})
	for name, c := range map[string]struct {
		auto bool
		ips  []string
		want int
	}{
		"not wanted": {false, []string{"10.0.0.1"}, 0}, "IPv4": {true, []string{"10.0.0.1"}, 1},
		"IPv6": {true, []string{"fd00::1"}, 1}, "both": {true, []string{"10.0.0.1", "fd00::1"}, 2},
	} {
		proxy := proxyAt(c.ips[0])
		proxy.AutoAllocate, proxy.IPs = c.auto, c.ips
		table := nameTableOf(t, g.Generate(mesh, proxy, xds.TypeNameTable))
		got := table.Hosts["a.example.com"].IPs
		if len(got) != c.want || len(table.Hosts) != min(c.want, 1) {
			t.Errorf("%s: %v of %v", name, got, table.Hosts)
		}
		again := nameTableOf(t, New(Config{}).Generate(snapshot.Build(nil, in, model.Change{All: true}), proxy, xds.TypeNameTable))
		if diff := cmp.Diff(table.Hosts, again.Hosts); diff != "" {
			t.Errorf("%s: another process gives others:\n%s", name, diff)
		}
	}
}

// TestNamesOfClusters checks that a proxy receives the address of the service in its own cluster,
// and reachable pods only. Of pods with the same name, it receives the one in its cluster.
func TestNamesOfClusters(t *testing.T) {
	t.Parallel()
	svc := kubeService("reviews.shop.svc.cluster.local", "shop", "10.0.0.7")
	svc.ClusterAddresses = map[string][]string{"c2": {"10.2.0.7"}, "c3": nil}
	for cluster, want := range map[string]string{"c1": "10.0.0.7", "c2": "10.2.0.7", "c3": "10.0.0.7"} {
		got := tableOf(&model.Proxy{ClusterID: cluster}, []*model.Service{svc}, &snapshot.Endpoints{}).Hosts[svc.Hostname].IPs
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", cluster, got, want)
		}
	}
	headless := kubeService("db.shop.svc.cluster.local", "shop")
	pod := func(address, cluster, network string) *model.Endpoint {
		return &model.Endpoint{Address: address, Hostname: "db-0.db", Cluster: cluster, Network: network, ServicePort: 80}
	}
	set := &snapshot.EndpointSet{List: []*model.Endpoint{pod("10.1.0.1", "c1", "one"), pod("10.1.0.2", "c2", "one"), pod("10.1.0.3", "c3", "two"), pod("10.1.0.4", "c1", "")}}
	for _, c := range []struct{ cluster, network, pod, all string }{
		{"c1", "one", "10.1.0.4", "[10.1.0.1 10.1.0.2 10.1.0.4]"},
		{"c2", "one", "10.1.0.2", "[10.1.0.1 10.1.0.2 10.1.0.4]"},
		{"c3", "two", "10.1.0.3", "[10.1.0.3 10.1.0.4]"},
		{"c2", "", "10.1.0.2", "[10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.4]"},
	} {
		table := &nds.Table{Hosts: map[string]nds.Host{}}
		all := podsOf(table, &model.Proxy{ClusterID: c.cluster, Network: c.network}, headless, set)
		if got := table.Hosts["db-0.db.shop.svc.cluster.local"].IPs; fmt.Sprint(all) != c.all || len(got) != 1 || got[0] != c.pod {
			t.Errorf("%+v: %v %v", c, all, got)
		}
	}
}
