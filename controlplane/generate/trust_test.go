// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	g := New(Config{})
	mesh := &snapshot.Mesh{Sequence: 1, Trust: &snapshot.Trust{PEM: []string{"one\n", "two\n"}}}
	for _, proxy := range []*model.Proxy{{Role: "sidecar"}, {Role: "router"}, {Role: "sidecar", Interception: model.InterceptionRedirect}} {
		set := g.Generate(mesh, proxy, xds.TypeProxyConfig)
		if len(set.Resources) != 1 || set != g.Generate(mesh, &model.Proxy{}, xds.TypeProxyConfig) {
			t.Fatalf("%+v gets %+v, which is not what all share", proxy, set)
		}
		want := &meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{"one\n", "two\n"}}
		if diff := cmp.Diff(want, unpack(t, set.Resources[0]), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for name, mesh := range map[string]*snapshot.Mesh{"no bundle": {Sequence: 2}, "empty bundle": {Sequence: 2, Trust: &snapshot.Trust{}}} {
		if n := len(g.Generate(mesh, &model.Proxy{}, xds.TypeProxyConfig).Resources); n != 0 {
			t.Errorf("%s: %d resources", name, n)
		}
	}
}
