// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// world is a changing mesh: objects and a platform.
type world struct {
	objects  map[model.Key]*model.Config
	services map[objectName]*PlatformService
	pods     map[objectName]*Workload
	networks *meshv1alpha1.MeshNetworks
}

func newWorld() *world {
	return &world{objects: map[model.Key]*model.Config{}, services: map[objectName]*PlatformService{}, pods: map[objectName]*Workload{}}
}

func (w *world) Services() []*PlatformService { return slices.Collect(maps.Values(w.services)) }

func (w *world) Service(namespace, name string) *PlatformService {
	return w.services[objectName{namespace, name}]
}

func (w *world) Pods(namespace, name string) (out []*Workload) {
	for n, pod := range w.pods {
		if n.namespace == namespace && (name == "" || n.name == name) {
			out = append(out, pod)
		}
	}
	return out
}

func (w *world) input() Input {
	return Input{
		List: func(kind model.Kind) []*model.Config {
			var out []*model.Config
			for key, c := range w.objects {
				if key.Kind == kind {
					out = append(out, c)
				}
			}
			sortObjects(out)
			return out
		},
		Get:       func(key model.Key) *model.Config { return w.objects[key] },
		Unhealthy: keysOf("a/w1", "b/w2"), Platform: w, Networks: w.networks,
	}
}

// step makes a random change and returns its key.
func (w *world) step(r *rand.Rand) model.Key {
	pick := func(values ...string) string { return values[r.IntN(len(values))] }
	labels := func() map[string]string {
		m := map[string]string{}
		for range r.IntN(3) {
			m[pick("app", "tier")] = pick("x", "y")
		}
		return m
	}
	address := func() string { return fmt.Sprintf("10.0.0.%d", r.IntN(6)) }
	if r.IntN(10) == 0 {
		// A change of the networks need not be part of the model.Change.
		w.networks = networksOf(map[string][]string{"one": {pick("10.0.0.0/29", "10.0.0.0/30")}, "two": {pick("10.0.0.4/31", "c")}}, pick("192.0.2.1", "192.0.2.2"))
	}
	gone := r.IntN(4) == 0
	namespace := pick("a", "b")
	n := objectName{namespace, fmt.Sprint("w", r.IntN(4))}
	key := model.Key{Namespace: n.namespace, Name: n.name}
	switch key.Kind = model.Kind(pick("ServiceEntry", "WorkloadEntry", "WorkloadEntry", "Service", "Endpoints", "Endpoints", "Pod", "Pod")); {
	case key.Kind == model.ServiceEntry && !gone:
		se := &networkingv1alpha3.ServiceEntry{
			Hosts: []string{pick("one.example", "two.example", "w1."+namespace+".svc"), pick("three.example", "*.example")}, Resolution: networkingv1alpha3.ServiceEntry_STATIC,
			Ports: []*networkingv1alpha3.ServicePort{{Number: 80, Name: "http"}, {Number: 90, Name: "tcp", TargetPort: 9}},
		}
		if r.IntN(3) > 0 {
			se.WorkloadSelector = &networkingv1alpha3.WorkloadSelector{Labels: labels()}
		} else {
			se.Resolution = networkingv1alpha3.ServiceEntry_Resolution(r.IntN(5))
		}
		w.objects[key] = &model.Config{Key: key, Spec: se, Created: time.Unix(int64(r.IntN(3)), 0)}
	case key.Kind == model.WorkloadEntry && !gone:
		w.objects[key] = &model.Config{Key: key, Labels: labels(), Created: time.Unix(int64(r.IntN(3)), 0), Spec: &networkingv1alpha3.WorkloadEntry{
			Address: pick(address(), "host"), Labels: labels(), Ports: map[string]uint32{pick("http", "named"): 1000},
		}}
	case key.Kind == model.KubernetesPod && !gone:
		w.pods[n] = &Workload{Object: key, Namespace: namespace, Address: address(), Labels: labels(), ServiceAccount: pick("", "sa"), Weight: 1}
	case key.Kind == model.KubernetesPod:
		delete(w.pods, n)
	case key.Kind == model.KubernetesService && gone:
		delete(w.services, n)
	case key.Kind == model.KubernetesService || key.Kind == model.KubernetesEndpoints && w.services[n] != nil:
		p := &PlatformService{Name: n.name, Selector: labels(), Targets: []TargetPort{{Name: "named"}, {Number: 7}}, Service: &model.Service{
			ServiceKey: model.ServiceKey{Hostname: n.name + "." + namespace + ".svc", Namespace: namespace}, Registry: model.RegistryKubernetes, Source: key,
			Ports: []model.Port{{Name: "http", Number: 80}, {Name: "tcp", Number: 90}},
		}}
		if before := w.services[n]; key.Kind == model.KubernetesEndpoints {
			p.Service, p.Selector = before.Service, before.Selector
		}
		for range r.IntN(3) {
			p.Endpoints = append(p.Endpoints, &model.Endpoint{Address: address(), Port: 8080, ServicePort: 80, Namespace: namespace, Weight: 1, Cluster: pick("", "c", "d"), Network: pick("", "three")})
		}
		p.Endpoints = SortOfClusters(p.Endpoints)
		w.services[n] = p
	case key.Kind != model.KubernetesEndpoints:
		delete(w.objects, key)
	}
	return key
}

// FuzzUpdate checks that Update has the same result as Build, does not modify earlier results, and
// reports exactly the actual changes.
func FuzzUpdate(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld()
		s := Build(w.input())
		for range 40 {
			change := model.NewChange(w.step(r))
			for r.IntN(3) == 0 {
				change = change.Merge(model.NewChange(w.step(r)))
			}
			before, said, made := s, show(s, s.Problems), slices.Clone(s.made)
			next, keys, whole := s.Update(w.input(), change)
			if again := show(before, before.Problems); again != said || !reflect.DeepEqual(made, before.made) {
				t.Fatalf("%v modified an earlier result:\n%s", change, cmp.Diff(said, again))
			}
			want := Build(w.input())
			again, _, _ := before.Update(w.input(), change)
			for _, got := range []*Services{next, again} {
				if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Services{}), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("after %v (-whole +incremental):\n%s", change, diff)
				}
			}
			for key, list := range next.Endpoints {
				if !whole && !slices.Contains(keys, key) && !cmp.Equal(list, before.Endpoints[key]) {
					t.Fatalf("after %v: the change of the endpoints of %v was not reported", change, key)
				}
			}
			s = next
		}
	})
}

// TestPlatformTakesPrecedence checks that a service of the platform takes precedence over an object
// with the same host. The endpoints of the object must be added, and the conflict must be reported.
func TestPlatformTakesPrecedence(t *testing.T) {
	t.Parallel()
	w := newWorld()
	host := model.ServiceKey{Hostname: "w1.a.svc", Namespace: "a"}
	w.services[objectName{"a", "w1"}] = &PlatformService{
		Name: "w1", Selector: map[string]string{"app": "x"}, Targets: []TargetPort{{Name: "named"}},
		Service:   &model.Service{ServiceKey: host, Registry: model.RegistryKubernetes, Ports: []model.Port{{Name: "http", Number: 80}}, Source: model.Key{Kind: model.KubernetesService, Namespace: "a", Name: "w1"}},
		Endpoints: []*model.Endpoint{{Address: "10.0.0.5", Port: 8080, ServicePort: 80}},
	}
	for _, c := range []*model.Config{
		object(t, model.ServiceEntry, "a/more", `hosts: "W1.a.svc" resolution: STATIC `+http+`endpoints {address: "10.0.0.9"}`),
		object(t, model.ServiceEntry, "a/dns", `hosts: "w1.a.svc" resolution: DNS `+http),
		object(t, model.WorkloadEntry, "a/one", `address: "10.0.0.1" labels {key: "app" value: "x"} ports {key: "named" value: 7}`),
		object(t, model.WorkloadEntry, "a/without", `address: "10.0.0.2" labels {key: "app" value: "x"}`),
		object(t, model.WorkloadEntry, "a/name", `address: "a.name" labels {key: "app" value: "x"}`),
	} {
		w.objects[c.Key] = c
	}
	s := Build(w.input())
	if s.ByKey[host].Registry != model.RegistryKubernetes || len(s.Sorted) != 1 {
		t.Errorf("services: got %v, want that of the platform", s.Sorted)
	}
	var got []string
	for _, e := range s.Endpoints[host] {
		got = append(got, fmt.Sprintf("%s:%d", e.Address, e.Port))
	}
	if want := "10.0.0.1:7 10.0.0.5:8080 10.0.0.9:80"; strings.Join(got, " ") != want {
		t.Errorf("endpoints: got %q, want %q", got, want)
	}
	var told []string
	for _, p := range s.Problems {
		told = append(told, fmt.Sprintf("%s %v", p.Object, p.Warning))
	}
	if want := "[ServiceEntry/a/dns false ServiceEntry/a/more true WorkloadEntry/a/name false]"; fmt.Sprint(told) != want {
		t.Errorf("problems: got %v, want %s", told, want)
	}
}

// BenchmarkUpdate changes the endpoints of one of 10,000 services.
func BenchmarkUpdate(b *testing.B) {
	w := newWorld()
	const services = 10_000
	endpoints := func(i, n int) []*model.Endpoint {
		return []*model.Endpoint{{Address: fmt.Sprintf("10.%d.%d.%d", i/250, i%250, n), Port: 8080, ServicePort: 80, Namespace: "a", Weight: 1}}
	}
	for i := range services {
		name := fmt.Sprint("s", i)
		w.services[objectName{"a", name}] = &PlatformService{Name: name, Selector: map[string]string{"app": name}, Endpoints: endpoints(i, 1), Service: &model.Service{
			ServiceKey: model.ServiceKey{Hostname: name + ".a.svc", Namespace: "a"}, Registry: model.RegistryKubernetes, Ports: []model.Port{{Name: "http", Number: 80}},
		}}
	}
	in := w.input()
	s := Build(in)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n := objectName{"a", fmt.Sprint("s", i%services)}
		p := *w.services[n]
		p.Endpoints = endpoints(i%services, 2+i%200)
		w.services[n] = &p
		var keys []model.ServiceKey
		if s, keys, _ = s.Update(in, model.NewChange(model.Key{Kind: model.KubernetesEndpoints, Namespace: n.namespace, Name: n.name})); len(keys) != 1 {
			b.Fatal(keys)
		}
	}
}
