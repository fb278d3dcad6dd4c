// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// flapping is a platform whose endpoints appear and disappear.
type flapping struct {
	platform
	endpoints map[string][]*model.Endpoint
}

func newFlapping(services, endpoints int) *flapping {
	f := &flapping{platform: platform{}, endpoints: map[string][]*model.Endpoint{}}
	for i := range services {
		name := fmt.Sprint("s", i)
		f.platform[name] = platform{}.with(name, name)[name]
		for j := range endpoints {
			f.endpoints[name] = append(f.endpoints[name], &model.Endpoint{
				Address: fmt.Sprintf("10.%d.%d.%d", i/200, i%200, j), Port: 80, ServicePort: 80, Namespace: "default", ServiceAccount: name, Weight: 1,
			})
		}
		f.set(name, f.endpoints[name])
	}
	return f
}

func (f *flapping) set(name string, endpoints []*model.Endpoint) {
	p := *f.platform[name]
	p.Endpoints = registry.SortEndpoints(append([]*model.Endpoint(nil), endpoints...))
	f.platform[name] = &p
}

// flap removes an endpoint of a service, or adds it again. It returns the name of the service.
func (f *flapping) flap(r *rand.Rand) string {
	name := fmt.Sprint("s", r.IntN(len(f.platform)))
	all := f.endpoints[name]
	if len(f.platform[name].Endpoints) < len(all) {
		f.set(name, all)
		return name
	}
	gone := r.IntN(len(all))
	f.set(name, append(append([]*model.Endpoint(nil), all[:gone]...), all[gone+1:]...))
	return name
}

func (f *flapping) input() Input {
	in := objects{}.input()
	in.Platform = f.platform
	return in
}

// TestFlappingEndpoints removes and adds a thousand endpoints in each of several rounds, as in one
// second of an incident. Each snapshot must rebuild only the affected services, and the last one
// must equal a snapshot built from scratch.
func TestFlappingEndpoints(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	const services, rounds, perRound, perBuild = 2_000, 5, 1_000, 100
	f := newFlapping(services, 4)
	m := Build(nil, f.input(), model.Change{All: true})
	for range rounds * perRound / perBuild {
		var names []string
		flapped := map[string]bool{}
		for range perBuild {
			name := f.flap(r)
			names, flapped[name] = append(names, name), true
		}
		next := Build(m, f.input(), endpointsChange(names...))
		made := 0
		for name, p := range f.platform {
			if next.Endpoints.Of(p.Service.ServiceKey) == m.Endpoints.Of(p.Service.ServiceKey) {
				continue
			}
			if made++; !flapped[name] {
				t.Fatalf("the endpoints of %s were rebuilt although none of them flapped", name)
			}
		}
		if made > len(flapped) || made == 0 {
			t.Fatalf("the endpoints of %d services were rebuilt, want 1 to %d", made, len(flapped))
		}
		if next.Services != m.Services || next.Accounts != m.Accounts {
			t.Fatal("services or identities were rebuilt although only endpoints flapped")
		}
		m = next
	}
	whole := Build(nil, f.input(), model.Change{All: true})
	for _, p := range f.platform {
		key := p.Service.ServiceKey
		if diff := cmp.Diff(whole.Endpoints.Of(key).List, m.Endpoints.Of(key).List); diff != "" {
			t.Fatalf("%s (-from scratch +incremental):\n%s", p.Name, diff)
		}
	}
}

// BenchmarkFlap measures the build after 100 endpoints flapped in a mesh of 10,000 services, as in
// a tenth of a second of an incident.
func BenchmarkFlap(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	f := newFlapping(10_000, 4)
	in := f.input()
	m := Build(nil, in, model.Change{All: true})
	b.ReportAllocs()
	for b.Loop() {
		names := make([]string, 100)
		for i := range names {
			names[i] = f.flap(r)
		}
		m = Build(m, in, endpointsChange(names...))
	}
}
