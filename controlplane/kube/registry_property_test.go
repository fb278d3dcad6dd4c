// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// told counts the changes that a member reports.
type told struct {
	services  map[types.NamespacedName]int
	endpoints map[types.NamespacedName]int
	pods      map[types.NamespacedName]int
}

func listen(m *member) *told {
	t := &told{services: map[types.NamespacedName]int{}, endpoints: map[types.NamespacedName]int{}, pods: map[types.NamespacedName]int{}}
	m.service = func(n types.NamespacedName) { t.services[n]++ }
	m.endpoints = func(n types.NamespacedName) { t.endpoints[n]++ }
	m.pod = func(n types.NamespacedName) bool { t.pods[n]++; return true }
	return t
}

// objectsOf are the records of a cluster.
type objectsOf struct {
	services map[types.NamespacedName]*serviceRecord
	slices   map[types.NamespacedName]*sliceRecord
	pods     map[types.NamespacedName]*podRecord
	nodes    map[string]*nodeRecord
	// namespaces has the labels of namespaces; own is the network of the control plane's namespace.
	namespaces map[string]*namespaceRecord
	selects    func(map[string]string) bool
}

// whole returns a member that received all records before it derived any state.
func (o *objectsOf) whole() *member {
	m := newMember("c")
	listen(m)
	m.selects = o.selects
	for n, r := range o.namespaces {
		m.setNamespace(n, r, "own")
	}
	for n, r := range o.slices {
		m.setSlice(n, r)
	}
	for n, r := range o.pods {
		again := *r
		again.place = nil
		m.setPod(n, &again)
	}
	for n, r := range o.nodes {
		m.setNode(n, r)
	}
	for n, r := range o.services {
		m.setService(n, r)
	}
	m.start()
	return m
}

// step changes one record at random, both in o and in the member.
func (o *objectsOf) step(r *rand.Rand, m *member) {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	name := types.NamespacedName{Namespace: pick("a", "b"), Name: fmt.Sprint("x", r.IntN(3))}
	gone := r.IntN(4) == 0
	switch r.IntN(6) {
	case 0:
		record := &serviceRecord{service: &model.Service{Addresses: []string{"10.96.0.1"}, Ports: []model.Port{{Name: pick("http", "tcp"), Number: 80}, {Name: "admin", Number: 81}}}}
		record.service.Addresses = record.service.Addresses[:r.IntN(2)]
		record.service.Headless = len(record.service.Addresses) == 0
		record.service.Labels = map[string]string{pick(model.PersistentSessionLabel, "app"): "x"}
		record.outside.network, record.outside.port = pick("", "n1"), defaultGatewayPort
		if r.IntN(2) == 0 {
			record.outside.nodes = map[string]string{"role": pick("edge", "core")}
			record.outside.nodePorts = map[uint32]uint32{uint32(15440 + r.IntN(5)): 30443}
		}
		if gone {
			record = nil
		}
		set(o.services, name, record)
		m.setService(name, record)
	case 1, 2:
		record := &sliceRecord{service: fmt.Sprint("x", r.IntN(3)), ports: []slicePort{{pick("http", "tcp"), 8080}, {"admin", 9}}}
		for range r.IntN(4) {
			record.endpoints = append(record.endpoints, sliceEndpoint{
				address: fmt.Sprint("10.0.0.", r.IntN(4)), pod: pick("", "x0", "x1", "x2"), uid: pick("", "u"), node: pick("", "n0", "n1"), zone: pick("", "z"), hostname: pick("", "h"), draining: r.IntN(3) == 0,
			})
		}
		if gone {
			record = nil
		}
		set(o.slices, name, record)
		m.setSlice(name, record)
	case 3, 4:
		record := &podRecord{
			labels: map[string]string{pick(tlsModeLabel, localityLabel, networkLabel): pick("istio", "r.z")}, addresses: []string{fmt.Sprint("10.0.0.", r.IntN(4))},
			account: pick("s", "t"), node: pick("n0", "n1"), uid: pick("u", "v"), ready: r.IntN(2) == 0, hostNet: r.IntN(4) == 0,
		}
		if gone {
			record = nil
		}
		set(o.pods, name, record)
		m.setPod(name, record)
	default:
		record := &nodeRecord{locality: pick("r/z", "r/y"), labels: map[string]string{"role": pick("edge", "core")}, external: []string{pick("192.0.2.1", "192.0.2.2")}[:r.IntN(2)]}
		node := pick("n0", "n1")
		if gone {
			record = nil
			delete(o.nodes, node)
		} else {
			o.nodes[node] = record
		}
		m.setNode(node, record)
		o.stepNamespace(r, m)
	}
}

// stepNamespace changes a namespace and the selection of namespaces at random.
func (o *objectsOf) stepNamespace(r *rand.Rand, m *member) {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	name := pick("a", "b", "own")
	record := &namespaceRecord{labels: map[string]string{"mesh": pick("on", "off"), networkLabel: pick("", "one", "two")}}
	if o.namespaces[name] = record; r.IntN(4) == 0 {
		record = nil
		delete(o.namespaces, name)
	}
	m.setNamespace(name, record, "own")
	if r.IntN(3) == 0 {
		want := pick("", "on", "off")
		if o.selects = func(labels map[string]string) bool { return labels["mesh"] == want }; want == "" {
			o.selects = nil
		}
		m.setSelects(o.selects)
	}
}

func set[R any](all map[types.NamespacedName]*R, name types.NamespacedName, record *R) {
	if record == nil {
		delete(all, name)
	} else {
		all[name] = record
	}
}

// showMember formats the services, endpoints and workloads of a member.
func showMember(m *member) map[string]string {
	out := map[string]string{}
	for service, shards := range m.shards {
		for slice, shard := range shards {
			text := ""
			for _, e := range shard {
				text += fmt.Sprintf("%+v\n", *e)
			}
			out[service.String()+" "+slice.String()] = text
		}
	}
	for n, record := range m.services {
		if m.selected(n.Namespace) {
			out["service "+n.String()] = fmt.Sprintf("%+v %v %+v", *withClusters(record.service, n, []*member{m}), record.outside, m.gateways(record))
		}
	}
	for n := range m.pods {
		if w := m.workload(n); w != nil && m.selected(n.Namespace) {
			out["pod "+n.String()] = fmt.Sprintf("%+v", *w)
		}
	}
	return out
}

// FuzzMember checks that following a cluster results in the same state as listing it once, that
// changes are reported, and that no state of removed objects remains.
func FuzzMember(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 4))
		o := &objectsOf{
			services: map[types.NamespacedName]*serviceRecord{}, slices: map[types.NamespacedName]*sliceRecord{},
			pods: map[types.NamespacedName]*podRecord{}, nodes: map[string]*nodeRecord{}, namespaces: map[string]*namespaceRecord{},
		}
		m := newMember("c")
		said := listen(m)
		m.start()
		before := showMember(m)
		for range 60 {
			clear(said.services)
			clear(said.endpoints)
			clear(said.pods)
			o.step(r, m)
			after := showMember(m)
			if diff := cmp.Diff(showMember(o.whole()), after); diff != "" {
				t.Fatalf("the followed state differs from the listed one (-whole +followed):\n%s", diff)
			}
			for n := range m.shards {
				for slice := range m.shards[n] {
					if key := n.String() + " " + slice.String(); before[key] != after[key] && said.endpoints[n] == 0 {
						t.Fatalf("a change of the endpoints of %s was not reported", key)
					}
				}
			}
			for _, n := range []types.NamespacedName{{Namespace: "a", Name: "x0"}, {Namespace: "a", Name: "x1"}, {Namespace: "b", Name: "x0"}, {Namespace: "b", Name: "x2"}} {
				if key := "service " + n.String(); before[key] != after[key] && said.services[n] == 0 {
					t.Fatalf("a change of %s was not reported:\n%s\n%s", key, before[key], after[key])
				}
			}
			for n := range m.pods {
				if key := "pod " + n.String(); before[key] != after[key] && said.pods[n] == 0 {
					t.Fatalf("a change of %s was not reported", key)
				}
			}
			before = after
		}
		for n := range o.slices {
			m.setSlice(n, nil)
		}
		for n := range o.pods {
			m.setPod(n, nil)
		}
		if len(m.users)+len(m.shards)+len(m.slices)+len(m.pods)+len(m.byAddress) != 0 {
			t.Errorf("state of removed objects remains: %+v", m)
		}
	})
}

// BenchmarkFlap removes and adds one of the 100 endpoints of a slice.
func BenchmarkFlap(b *testing.B) {
	m := newMember("c")
	said := listen(m)
	m.start()
	name := types.NamespacedName{Namespace: "a", Name: "x"}
	m.setService(name, &serviceRecord{service: &model.Service{Addresses: []string{"10.96.0.1"}, Ports: []model.Port{{Name: "http", Number: 80}}}})
	full := &sliceRecord{service: "x", ports: []slicePort{{"http", 8080}}}
	for i := range 100 {
		pod, address := fmt.Sprint("p", i), fmt.Sprint("10.0.0.", i)
		m.setPod(types.NamespacedName{Namespace: "a", Name: pod}, &podRecord{addresses: []string{address}, labels: map[string]string{"app": "x"}})
		full.endpoints = append(full.endpoints, sliceEndpoint{address: address, pod: pod})
	}
	less := &sliceRecord{service: "x", ports: full.ports, endpoints: full.endpoints[1:]}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if record := []*sliceRecord{full, less}[i%2]; !m.setSlice(name, record) {
			b.Fatal("nothing changed")
		}
	}
	if said.endpoints[name] == 0 {
		b.Fatal("nothing was reported")
	}
}
