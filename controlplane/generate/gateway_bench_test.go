// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// BenchmarkGateway changes one of 2,000 VirtualServices of a gateway, and rebuilds its routes and
// listeners.
func BenchmarkGateway(b *testing.B) {
	const hosts = 2000
	objects := []*model.Config{{Key: model.Key{Kind: model.Gateway, Namespace: "shop", Name: "gw"}, Spec: &networkingv1alpha3.Gateway{
		Servers: []*networkingv1alpha3.Server{
			{Hosts: []string{"*"}, Port: &networkingv1alpha3.Port{Number: 80, Name: "http", Protocol: "HTTP"}},
			{Hosts: []string{"*"}, Port: &networkingv1alpha3.Port{Number: 443, Name: "https", Protocol: "HTTPS"}, Tls: &networkingv1alpha3.ServerTLSSettings{
				Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE, CredentialName: "one",
			}},
		},
	}}}
	change := func(i, status int) *model.Config {
		return &model.Config{Key: model.Key{Kind: model.VirtualService, Namespace: "shop", Name: fmt.Sprint("vs-", i)}, Spec: &networkingv1alpha3.VirtualService{
			Hosts: []string{fmt.Sprintf("host-%d.test", i)}, Gateways: []string{"gw"},
			Http: []*networkingv1alpha3.HTTPRoute{{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: uint32(status)}}},
		}}
	}
	for i := range hosts {
		objects = append(objects, change(i, 200))
	}
	settings := meshconfig.Default()
	for _, vhds := range []bool{false, true} {
		b.Run(fmt.Sprint("vhds=", vhds), func(b *testing.B) {
			proxy := edgeProxy
			proxy.VHDS = vhds
			g := New(Config{})
			mesh := snapshot.Build(nil, inputOf(objects, settings), model.Change{All: true})
			generateAll(g, mesh, &proxy)
			n := 0
			for b.Loop() {
				n++
				objects[1] = change(0, 200+n%2)
				mesh = snapshot.Build(mesh, inputOf(objects, settings), model.NewChange(objects[1].Key))
				generateAll(g, mesh, &proxy)
			}
		})
	}
}
