// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// BenchmarkExplain explains a VirtualService of a mesh of 500 services and 1,000 proxies with
// different listeners.
func BenchmarkExplain(b *testing.B) {
	const services, proxies = 500, 1000
	objects := debugtest.Objects{}
	for i := range services {
		name := fmt.Sprintf("s%03d", i)
		objects = append(
			objects, debugtest.External(name, fmt.Sprintf("240.0.%d.%d", i/250, i%250+1)),
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
	s.Debug(debug.Config{Objects: objects})
	s.Push(objects.Mesh(nil), model.Change{All: true})
	for i := range proxies {
		st := &stream{server: s, proxy: &model.Proxy{
			ID: fmt.Sprintf("p%d.default", i), Role: "sidecar", IPs: []string{fmt.Sprintf("127.77.%d.%d", i/250, i%250+1)}, Namespace: "default",
			Domain: "default.svc.cluster.local", Interception: model.InterceptionNone, VHDS: true,
		}}
		st.acks.track(&acknowledgement{typeURL: xds.TypeCluster})
		s.streams[st] = struct{}{}
	}
	var got report.Object
	debugGet(b, s, "explain?kind=VirtualService&namespace=default&name=s007", &got)
	if len(got.Resources) != 1 || len(got.Proxies) != proxies {
		b.Fatalf("got %d resources of %d proxies", len(got.Resources), len(got.Proxies))
	}
	for b.Loop() {
		debugGet(b, s, "explain?kind=VirtualService&namespace=default&name=s007", &got)
	}
}
