// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// platform are the services of a cluster, by name.
type platform map[string]*registry.PlatformService

func (p platform) Services() (out []*registry.PlatformService) {
	for _, s := range p {
		out = append(out, s)
	}
	return out
}

func (p platform) Service(_, name string) *registry.PlatformService { return p[name] }

func (p platform) Pods(string, string) []*registry.Workload { return nil }

// with returns the platform with an additional service, whose endpoints have the given service
// account and addresses.
func (p platform) with(name, account string, addresses ...string) platform {
	out := platform{}
	for n, s := range p {
		out[n] = s
	}
	s := &registry.PlatformService{Name: name, Service: &model.Service{
		ServiceKey: model.ServiceKey{Hostname: name + ".default.svc.cluster.local", Namespace: "default"},
		Registry:   model.RegistryKubernetes, Ports: []model.Port{{Name: "http", Number: 80, Protocol: model.ProtocolHTTP}},
	}}
	if before := p[name]; before != nil {
		s.Service = before.Service
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, &model.Endpoint{Address: a, Port: 80, ServicePort: 80, Namespace: "default", ServiceAccount: account, Weight: 1})
	}
	out[name] = s
	return out
}

func (p platform) build(prev *Mesh, change model.Change) *Mesh {
	in := objects{}.input()
	in.Platform = p
	return Build(prev, in, change)
}

func endpointsChange(names ...string) model.Change {
	keys := make([]model.Key, len(names))
	for i, name := range names {
		keys[i] = model.Key{Kind: model.KubernetesEndpoints, Namespace: "default", Name: name}
	}
	return model.NewChange(keys...)
}

// TestEndpointsChangeAlone checks that a change of endpoints rebuilds only the endpoints of the
// named services.
func TestEndpointsChangeAlone(t *testing.T) {
	t.Parallel()
	p := platform{}.with("a", "a", "10.0.0.1").with("b", "b", "10.0.1.1").with("c", "c", "10.0.2.1")
	m := p.build(nil, model.Change{All: true})
	for _, step := range []struct {
		account   string
		addresses []string
		indexes   []string
	}{
		{"a", []string{"10.0.0.1", "10.0.0.2"}, []string{"endpoints"}},
		{"a", []string{"10.0.0.1", "10.0.0.2"}, nil},
		{"a", nil, []string{"endpoints"}}, // the identities are unchanged
		{"a", nil, nil},
		{"a", []string{"10.0.0.3"}, []string{"endpoints"}},
		{"new", []string{"10.0.0.3"}, []string{"accounts", "endpoints"}},
	} {
		p = p.with("a", step.account, step.addresses...)
		next := p.build(m, endpointsChange("a", "unknown"))
		var got []string
		for name, index := range indexes(next) {
			if index != indexes(m)[name] {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, step.indexes) {
			t.Errorf("%+v: rebuilt indexes: got %v", step, got)
		}
		if addresses := addressesOf(next, next.Endpoints, "a.default.svc.cluster.local"); !slices.Equal(addresses, step.addresses) {
			t.Errorf("%+v: endpoints: got %v", step, addresses)
		}
		for _, other := range []string{"b", "c"} {
			key := p[other].Service.ServiceKey
			if next.Endpoints.Of(key) != m.Endpoints.Of(key) {
				t.Errorf("%+v: the endpoints of %s were rebuilt", step, other)
			}
		}
		m = next
	}
}

// TestAccountsWithoutEndpoints checks that a service without endpoints keeps its identities until
// the service is removed or has an endpoint with another identity.
func TestAccountsWithoutEndpoints(t *testing.T) {
	t.Parallel()
	p := platform{}.with("a", "a", "10.0.0.1")
	key := p["a"].Service.ServiceKey
	m := p.build(nil, model.Change{All: true})
	p = p.with("a", "")
	for _, change := range []model.Change{endpointsChange("a"), {All: true}} {
		if got := p.build(m, change).Accounts.Of(key); got == nil || len(got.List) != 1 {
			t.Errorf("after %v: identities of the service without endpoints: got %v, want 1", change, got)
		}
	}
	if got := (platform{}).build(m, model.Change{All: true}).Accounts.Of(key); got != nil {
		t.Errorf("identities of a removed service: got %v, want none", got)
	}
	if got := p.with("a", "b", "10.0.0.2").build(m, endpointsChange("a")).Accounts.Of(key); fmt.Sprint(got.List) != "[{default b}]" {
		t.Errorf("identities with endpoints of another account: got %v, want [{default b}]", got)
	}
}

// TestPreferredAndExported checks that a service of a cluster takes precedence over an object in
// another namespace. A service must be visible only to the namespaces that it is exported to.
func TestPreferredAndExported(t *testing.T) {
	t.Parallel()
	se := service("other", "a", "a.default.svc.cluster.local")
	private := service("other", "private", "private.example.com")
	private.Spec.(*networkingv1alpha3.ServiceEntry).ExportTo = []string{"."}
	given := service("other", "given", "given.example.com")
	given.Spec.(*networkingv1alpha3.ServiceEntry).ExportTo = []string{"third", "nobody"}
	in := objects{se, private, given}.input()
	in.Platform = platform{}.with("a", "a", "10.0.0.1")
	m := Build(nil, in, model.Change{All: true})
	for namespace, want := range map[string]string{
		"third":   "a.default.svc.cluster.local/default given.example.com/other",
		"default": "a.default.svc.cluster.local/default",
		"other":   "a.default.svc.cluster.local/other private.example.com/other",
	} {
		var got string
		for _, svc := range m.Services.Visible(namespace, nil) {
			got += " " + svc.Hostname + "/" + svc.Namespace
			if found := m.Services.ForHost(svc.Hostname, namespace); found != svc {
				t.Errorf("ForHost() in namespace %s = %v, want the service of the cluster", namespace, found)
			}
		}
		if got[1:] != want {
			t.Errorf("services visible to %s: got%s, want %s", namespace, got, want)
		}
	}
	if found := m.Services.ForHost("private.example.com", "third"); found != nil {
		t.Errorf("ForHost() of a private service of another namespace = %v, want nil", found)
	}
}

// BenchmarkEndpointChange measures the build after a change of the endpoints of one of 10,000
// services.
func BenchmarkEndpointChange(b *testing.B) {
	p := platform{}
	const services = 10_000
	for i := range services {
		name := fmt.Sprint("s", i)
		p[name] = platform{}.with(name, name, fmt.Sprintf("10.%d.%d.1", i/250, i%250))[name]
	}
	in := objects{}.input()
	in.Platform = p
	m := Build(nil, in, model.Change{All: true})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprint("s", i%services)
		s := *p[name]
		s.Endpoints = []*model.Endpoint{{Address: fmt.Sprintf("10.99.%d.%d", i%256, i/256%256), Port: 80, ServicePort: 80, Namespace: "default", ServiceAccount: name, Weight: 1}}
		p[name] = &s
		next := Build(m, in, endpointsChange(name))
		if next.Services != m.Services || next.Endpoints == m.Endpoints || next.Accounts != m.Accounts {
			b.Fatal("the wrong indexes were rebuilt")
		}
		m = next
	}
}
