// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func sortObjects(list []*model.Config) { slices.SortFunc(list, model.Older) }

// random returns random objects, which may be invalid.
func random(r *rand.Rand) (entries, workloads []*model.Config) {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	number := func() uint32 { return uint32(r.IntN(4)) }
	labels := func() map[string]string {
		m := map[string]string{}
		for range r.IntN(3) {
			m[pick("app", "v", "", tlsModeLabel, localityLabel)] = pick("a", "b", "", "istio", "r.z")
		}
		return m
	}
	workload := func() *networkingv1alpha3.WorkloadEntry {
		if r.IntN(10) == 0 {
			return nil
		}
		return &networkingv1alpha3.WorkloadEntry{
			Address: pick("", "10.0.0.1", "10.0.0.2", "unix:///x", "unix://", "unix://@a", "host", "::1"), Labels: labels(), Weight: number(),
			Ports: map[string]uint32{pick("http", ""): number()}, ServiceAccount: pick("", "sa"), Locality: pick("", "r/z"),
		}
	}
	key := func(kind model.Kind, i int) model.Key {
		return model.Key{Kind: kind, Namespace: pick("default", "other"), Name: fmt.Sprint("o", i)}
	}
	for i := range r.IntN(6) {
		se := &networkingv1alpha3.ServiceEntry{
			Addresses:  []string{pick("", "10.0.0.0/8", "10.0.0.1/32", "x")},
			Resolution: networkingv1alpha3.ServiceEntry_Resolution(r.IntN(6)),
			Location:   networkingv1alpha3.ServiceEntry_Location(r.IntN(3)),
		}
		for range r.IntN(3) {
			se.Hosts = append(se.Hosts, pick("", "a", "A", "b.example"))
			se.Ports = append(se.Ports, &networkingv1alpha3.ServicePort{
				Number: number(), TargetPort: number(), Name: pick("http", ""), Protocol: pick("", "HTTP", "-", "UDP"),
			}, nil)
			se.Endpoints = append(se.Endpoints, workload())
		}
		if r.IntN(2) == 0 {
			se.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: labels()}
			se.Endpoints = se.Endpoints[:r.IntN(len(se.Endpoints)+1)]
		}
		entries = append(entries, &model.Config{Key: key(model.ServiceEntry, i), Spec: se})
	}
	for i := range r.IntN(6) {
		workloads = append(workloads, &model.Config{Key: key(model.WorkloadEntry, i), Labels: labels(), Spec: workload()})
	}
	entries = append(entries, nil, &model.Config{}, &model.Config{Spec: (*networkingv1alpha3.ServiceEntry)(nil)})
	return entries, append(workloads, nil, &model.Config{})
}

// FuzzBuild checks for any input that Build does not panic and is deterministic, and that endpoints
// belong to services, are unique and are usable.
func FuzzBuild(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		entries, workloads := random(rand.New(rand.NewPCG(seed, 1)))
		unhealthy := keysOf("default/o1", "other/o2", "default/o3")
		s, problems := build(entries, workloads, unhealthy)
		entries, workloads = random(rand.New(rand.NewPCG(seed, 1)))
		again, sameProblems := build(entries, workloads, unhealthy)
		if diff := cmp.Diff(show(s, problems), show(again, sameProblems)); diff != "" {
			t.Errorf("two builds differ:\n%s", diff)
		}
		if diff := cmp.Diff(s, again, cmpopts.IgnoreUnexported(Services{})); diff != "" {
			t.Errorf("two builds differ:\n%s", diff)
		}
		if len(s.Sorted) != len(s.ByKey) || len(s.Endpoints) != len(s.ByKey) {
			t.Errorf("Sorted, ByKey and Endpoints have %d, %d and %d services, want equal numbers", len(s.Sorted), len(s.ByKey), len(s.Endpoints))
		}
		for key, endpoints := range s.Endpoints {
			if s.ByKey[key] == nil {
				t.Errorf("endpoints without the service %v", key)
			}
			for i, e := range endpoints {
				if e.Weight == 0 || i > 0 && compareEndpoints(endpoints[i-1], e) >= 0 && e.Address != key.Hostname {
					t.Errorf("endpoint %d of %v is invalid or out of order: %+v", i, key, e)
				}
				_, down := unhealthy[model.Key{Kind: model.WorkloadEntry, Namespace: e.Namespace, Name: e.Workload}]
				if e.Unhealthy != down {
					t.Errorf("endpoint %d of %v: Unhealthy = %v, want %v", i, key, e.Unhealthy, down)
				}
			}
		}
	})
}

// BenchmarkBuild derives 500 services with 4 endpoints each.
func BenchmarkBuild(b *testing.B) {
	var entries, workloads []*model.Config
	for i := range 500 {
		app := fmt.Sprintf("app-%d", i)
		entries = append(entries, object(b, model.ServiceEntry, "default/"+app, fmt.Sprintf(
			`hosts: "%s.default.svc.cluster.local" location: MESH_INTERNAL resolution: STATIC
			ports {number: 80 name: "http" protocol: "HTTP"} workload_selector {labels {key: "app" value: "%s"}}`, app, app)))
		for j := range 4 {
			workloads = append(workloads, object(b, model.WorkloadEntry, fmt.Sprintf("default/%s-%d", app, j), fmt.Sprintf(
				`address: "10.%d.%d.%d" labels {key: "app" value: "%s"} service_account: "%s"`, i/250, i%250, j, app, app)))
		}
	}
	sortObjects(entries)
	sortObjects(workloads)
	b.ReportAllocs()
	for b.Loop() {
		if s, problems := build(entries, workloads, nil); len(s.Sorted) != 500 || len(problems) > 0 {
			b.Fatal(len(s.Sorted), problems)
		}
	}
}
