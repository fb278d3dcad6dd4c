// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/revisions"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// benchMesh returns a server with services, a VirtualService for each, and proxies with different
// listeners.
func benchMesh(b testing.TB, services, proxies int, cfg debug.Config) (*Server, debugtest.Objects) {
	b.Helper()
	objects := debugtest.Objects{}
	for i := range services {
		name := fmt.Sprintf("s%03d", i)
		objects = append(
			objects, debugtest.External(name, fmt.Sprintf("240.%d.%d.%d", i/62500, i/250%250, i%250+1)),
			debugtest.Stored(model.VirtualService, "default", name, &networkingv1alpha3.VirtualService{
				Hosts: []string{name + ".example.com"}, Http: []*networkingv1alpha3.HTTPRoute{{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: name + ".example.com"}}}}},
			}),
		)
	}
	objects = append(objects, debugtest.Shop()[6])
	s, err := New(Config{Generator: generate.New(generate.Config{}), Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	cfg.Objects = objects
	s.Debug(cfg)
	s.Push(objects.Mesh(nil), model.Change{All: true})
	for i := range proxies {
		st := &stream{server: s, proxy: &model.Proxy{
			ID: fmt.Sprintf("p%d.default", i), Role: "sidecar", IPs: []string{fmt.Sprintf("127.77.%d.%d", i/250, i%250+1)}, Namespace: "default", ServiceAccount: fmt.Sprint("a", i),
			Domain: "default.svc.cluster.local", Interception: model.InterceptionNone, VHDS: true,
		}}
		st.acks.track(&acknowledgement{typeURL: xds.TypeCluster})
		s.streams[st] = struct{}{}
	}
	return s, objects
}

// BenchmarkExplain explains a VirtualService of a mesh of 500 services and 1,000 proxies.
func BenchmarkExplain(b *testing.B) {
	const services, proxies = 500, 1000
	s, _ := benchMesh(b, services, proxies, debug.Config{})
	var got report.Object
	debugGet(b, s, "explain?kind=VirtualService&namespace=default&name=s007", &got)
	if len(got.Resources) != 1 || len(got.Proxies) != proxies {
		b.Fatalf("got %d resources of %d proxies", len(got.Resources), len(got.Proxies))
	}
	for b.Loop() {
		debugGet(b, s, "explain?kind=VirtualService&namespace=default&name=s007", &got)
	}
}

// onePast is the history of an object that has just been created.
type onePast report.Version

func (p onePast) List(revisions.Filter) (report.History, error) {
	return report.History{Versions: []report.Version{report.Version(p)}}, nil
}

func (p onePast) Changes(time.Time, time.Time) ([]report.Changed, error) {
	return []report.Changed{{Ref: p.Ref, Before: (*report.Version)(&p)}}, nil
}

// BenchmarkExplainThen explains a VirtualService of a mesh of 10,000 services and 1,000 proxies as it was
// before a change.
func BenchmarkExplainThen(b *testing.B) {
	const services, proxies = 10_000, 1000
	ref := report.Ref{Kind: "VirtualService", Namespace: "default", Name: "s007"}
	const object = `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"s007","namespace":"default"},"spec":{"hosts":["s007.example.com"],"http":[{"timeout":"1s","route":[{"destination":{"host":"s007.example.com"}}]}]}}`
	var objects debugtest.Objects
	var s *Server
	s, objects = benchMesh(b, services, proxies, debug.Config{
		Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
			return debug.Outcome{Mesh: objects.Changed(p.Objects).Mesh(prev)}
		},
		Past: onePast{Ref: ref, Change: report.Updated, Revision: "1", Object: []byte(object)},
	})
	for b.Loop() {
		var got report.Object
		debugGet(b, s, "explain?kind=VirtualService&namespace=default&name=s007&at=2026-05-01T03:00:00Z", &got)
		if got.Then == nil || got.Then.NoEffect != "" || len(got.Proxies) != proxies {
			b.Fatalf("got %d resources of %d proxies, %+v", len(got.Resources), len(got.Proxies), got.Then)
		}
	}
}

// BenchmarkWhatIf predicts changes in a mesh of 10,000 services and 1,000 proxies: of a VirtualService,
// and of a policy for all workloads.
func BenchmarkWhatIf(b *testing.B) {
	const services, proxies = 10_000, 1000
	var objects debugtest.Objects
	var s *Server
	s, objects = benchMesh(b, services, proxies, debug.Config{
		Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
			return debug.Outcome{Mesh: objects.Changed(p.Objects).Mesh(prev)}
		},
	})
	rule := func(i int) string {
		return fmt.Sprintf(`{"from": [{"source": {"requestPrincipals": ["https://issuer.example/%d"]}}, {"source": {"namespaces": ["n%d"]}}], "to": [{"operation": {"paths": ["/%d*"]}}], "when": [{"key": "request.headers[x-%d]", "values": ["a", "b*"]}]}`, i, i, i, i)
	}
	rules := []string{}
	for i := range 20 {
		rules = append(rules, rule(i))
	}
	for name, changed := range map[string]string{
		"routes": `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "s007", "namespace": "default"},
			"spec": {"hosts": ["s007.example.com"], "http": [{"timeout": "1s", "route": [{"destination": {"host": "s007.example.com"}}]}]}}`,
		"policies": `{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a", "namespace": "istio-system"}, "spec": {"rules": [` + strings.Join(rules, ", ") + `]}}
---
{"apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication", "metadata": {"name": "a", "namespace": "istio-system"}, "spec": {"jwtRules": [{"issuer": "https://issuer.example", "jwks": "{\"keys\":[]}"}]}}`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				code, body := postDebug(s, "whatif", url.Values{"objects": {changed}})
				if code != http.StatusOK || strings.Count(body, `"digest":`) != proxies {
					b.Fatalf("got %d %.1000s", code, body)
				}
			}
		})
	}
}
