// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func showGateways(list []model.NetworkGateway) string {
	var out []string
	for _, g := range list {
		out = append(out, fmt.Sprintf("%s/%s=%s:%d", g.Network, g.Cluster, g.Address, g.Port))
	}
	return strings.Join(out, " ")
}

// TestAccessFromOutside checks how services are reached from outside, in a cluster with two nodes.
func TestAccessFromOutside(t *testing.T) {
	t.Parallel()
	const balanced = `status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: lb.example.com}]}}`
	for name, c := range map[string]struct{ meta, spec, status, addresses, gateways, problems string }{
		"inside":        {spec: `{clusterIP: 10.96.0.1, ports: [{port: 80}]}`, addresses: "map[]"},
		"not balanced":  {spec: `{type: ClusterIP, externalIPs: [192.0.2.7, "2001:db8::07"]}`, status: balanced, addresses: "map[c:[192.0.2.7 2001:db8::7]]"},
		"balanced":      {spec: `{type: LoadBalancer, externalIPs: [192.0.2.7]}`, status: balanced, addresses: "map[c:[192.0.2.7 192.0.2.1 lb.example.com]]"},
		"to come":       {spec: `{type: LoadBalancer, clusterIP: 10.96.0.1}`, addresses: "map[] awaited"},
		"a gateway":     {meta: `labels: {topology.istio.io/network: one}`, spec: `{type: ClusterIP, externalIPs: [192.0.2.7]}`, addresses: "map[c:[192.0.2.7]]", gateways: "one/c=192.0.2.7:15443"},
		"at a name too": {meta: `labels: {topology.istio.io/network: one, networking.istio.io/gatewayPort: "443"}`, spec: `{type: LoadBalancer}`, status: balanced, addresses: "map[c:[192.0.2.1 lb.example.com]]", gateways: "one/c=192.0.2.1:443", problems: `the gateway of the network "one" has the name "lb.example.com"`},
		"a wrong port":  {meta: `labels: {topology.istio.io/network: one, networking.istio.io/gatewayPort: "0"}`, spec: `{externalIPs: [192.0.2.7]}`, addresses: "map[c:[192.0.2.7]]", gateways: "one/c=192.0.2.7:15443", problems: `the label networking.istio.io/gatewayPort is "0"`},
		"nodes": {
			meta: `labels: {topology.istio.io/network: one}, annotations: {traffic.istio.io/nodeSelector: '{"role": "edge"}'}`, spec: `{type: NodePort, ports: [{port: 15443, nodePort: 30443}]}`,
			addresses: "map[c:[192.0.2.101]] map[c:map[15443:30443]]", gateways: "one/c=192.0.2.101:30443",
		},
		"all nodes":     {meta: `annotations: {traffic.istio.io/nodeSelector: '{}'}`, spec: `{type: NodePort, ports: [{port: 80, nodePort: 30080}]}`, addresses: "map[c:[192.0.2.101 192.0.2.102]] map[c:map[80:30080]]"},
		"no map":        {meta: `annotations: {traffic.istio.io/nodeSelector: 'edge'}`, spec: `{type: NodePort, ports: [{port: 80, nodePort: 30080}]}`, addresses: "map[]", problems: "the annotation traffic.istio.io/nodeSelector is not a map"},
		"null":          {meta: `annotations: {traffic.istio.io/nodeSelector: 'null'}`, spec: `{type: NodePort}`, addresses: "map[]", problems: "the annotation traffic.istio.io/nodeSelector is not a map"},
		"nodes, unread": {spec: `{type: NodePort, ports: [{port: 80, nodePort: 30080}]}`, addresses: "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMember("c")
			listen(m)
			for node, role := range map[string]string{"n1": "edge", "n2": "core"} {
				m.setNode(node, readNode(parse[corev1.Node](t, fmt.Sprintf(`{metadata: {labels: {role: %s}}, status: {addresses: [{type: InternalIP, address: 10.0.0.%s}, {type: ExternalIP, address: 192.0.2.10%s}]}}`, role, node[1:], node[1:]))))
			}
			s := parse[corev1.Service](t, "metadata: {name: a, namespace: shop, "+c.meta+"}\nspec: "+c.spec+"\n"+c.status)
			trimService(s)
			record := readService("test", s)
			n := types.NamespacedName{Namespace: "shop", Name: "a"}
			m.setService(n, record)
			with := withClusters(record.service, n, []*member{m})
			got := fmt.Sprint(with.ExternalAddresses)
			if len(with.ExternalPorts) > 0 {
				got += fmt.Sprint(" ", with.ExternalPorts)
			}
			if with.AwaitsAddress {
				got += " awaited"
			}
			if got != c.addresses || showGateways(m.gateways(record)) != c.gateways {
				t.Errorf("got addresses %s, gateways %s", got, showGateways(m.gateways(record)))
			}
			var problems string
			for _, p := range record.problems {
				problems += p.Reason
			}
			if (problems == "") != (c.problems == "") || !strings.Contains(problems, c.problems) {
				t.Errorf("problems: got %q, want %q", problems, c.problems)
			}
		})
	}
}

// TestNodeChanges checks that a node affects the locality of endpoints and the services that are
// reached through it, but that its heartbeats have no effect.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	m := newMember("c")
	said := listen(m)
	m.start()
	n := types.NamespacedName{Namespace: "shop", Name: "a"}
	m.setService(n, &serviceRecord{service: &model.Service{Ports: []model.Port{{Name: "http", Number: 80}}}, outside: outside{nodes: map[string]string{"role": "edge"}}})
	m.setPod(types.NamespacedName{Namespace: "shop", Name: "p"}, &podRecord{addresses: []string{"10.0.0.1"}, node: "n1"})
	m.setSlice(types.NamespacedName{Namespace: "shop", Name: "a-1"}, &sliceRecord{service: "a", ports: []slicePort{{"http", 8080}}, endpoints: []sliceEndpoint{{address: "10.0.0.1", pod: "p"}}})
	var before *nodeRecord
	for _, c := range []struct {
		name                string
		node                string
		equal               bool
		services, endpoints int
	}{
		{"comes", `{metadata: {labels: {role: edge, topology.kubernetes.io/region: r}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.1}]}}`, false, 1, 1},
		{"heartbeat", `{metadata: {resourceVersion: "9", labels: {role: edge, topology.kubernetes.io/region: r}}, status: {conditions: [{type: Ready, status: "True"}], addresses: [{type: ExternalIP, address: 192.0.2.1}]}}`, true, 0, 0},
		{"moves", `{metadata: {labels: {role: edge, topology.kubernetes.io/region: s}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.1}]}}`, false, 0, 1},
		{"new address", `{metadata: {labels: {role: edge, topology.kubernetes.io/region: s}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.2}]}}`, false, 1, 0},
		{"other label", `{metadata: {labels: {x: y, role: edge, topology.kubernetes.io/region: s}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.2}]}}`, false, 0, 0},
		{"not chosen", `{metadata: {labels: {role: core, topology.kubernetes.io/region: s}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.2}]}}`, false, 1, 0},
		{"goes", "", false, 0, 1},
	} {
		clear(said.services)
		clear(said.endpoints)
		var record *nodeRecord
		if c.node != "" {
			o := parse[corev1.Node](t, c.node)
			trimNode(o)
			record = readNode(o)
		}
		if equal := before != nil && record != nil && before.equal(record); equal != c.equal {
			t.Errorf("%s: equal: %v, want %v", c.name, equal, c.equal)
		} else if !equal {
			changed := m.setNode("n1", record)
			if changed != (c.services+c.endpoints > 0) {
				t.Errorf("%s: changed: %v", c.name, changed)
			}
		}
		if got := []int{said.services[n], said.endpoints[n]}; !cmp.Equal(got, []int{c.services, c.endpoints}) {
			t.Errorf("%s: reported changes of service and endpoints: got %v, want %d and %d", c.name, got, c.services, c.endpoints)
		}
		before = record
	}
}

// TestServiceOfTwoClusters merges a service that differs between its two clusters.
func TestServiceOfTwoClusters(t *testing.T) {
	t.Parallel()
	r, _ := inCluster(t, func(model.Change) {})
	n := types.NamespacedName{Namespace: "shop", Name: "a"}
	for id, spec := range map[string]string{
		"c": `{metadata: {name: a, namespace: shop, labels: {topology.istio.io/network: one}}, spec: {clusterIP: 10.96.0.1, externalIPs: [192.0.2.1]}}`,
		"d": `{metadata: {name: a, namespace: shop, labels: {topology.istio.io/network: two}}, spec: {clusterIP: 10.97.0.1, externalIPs: [192.0.2.2]}}`,
		"e": `{metadata: {name: a, namespace: shop}, spec: {clusterIP: None}}`,
	} {
		f := r.join(id)
		r.members[id] = f.member
		f.member.start()
		f.member.setService(n, readService("test", parse[corev1.Service](t, spec)))
	}
	p := r.Service("shop", "a")
	s := p.Service
	if got, want := fmt.Sprint(s.Addresses, s.ClusterAddresses, s.ExternalAddresses, " ", showGateways(p.Gateways)),
		"[10.96.0.1] map[c:[10.96.0.1] d:[10.97.0.1]] map[c:[192.0.2.1] d:[192.0.2.2]] one/c=192.0.2.1:15443 two/d=192.0.2.2:15443"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for cluster, want := range map[string]string{"c": "10.96.0.1", "d": "10.97.0.1", "e": "10.96.0.1"} {
		if got := s.AddressesFor(&model.Proxy{ClusterID: cluster}); len(got) != 1 || got[0] != want {
			t.Errorf("a proxy of %s receives %v, want %s", cluster, got, want)
		}
	}
	delete(r.members, "d")
	delete(r.members, "e")
	clear(r.merged)
	if s := r.Service("shop", "a").Service; s.ClusterAddresses != nil {
		t.Errorf("a service of one cluster has addresses by cluster: %v", s.ClusterAddresses)
	}
}
