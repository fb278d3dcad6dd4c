// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// placedMesh has a service that prefers near endpoints, one that does not, and one with a Secret
// for proxies with a label.
const placedMesh = `
kind: ServiceEntry
metadata: {name: near, namespace: default}
spec:
  hosts: [near.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, locality: eu/a}, {address: 10.0.0.2, locality: us/a}]
---
kind: ServiceEntry
metadata: {name: any, namespace: default}
spec:
  hosts: [any.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.3, locality: eu/a}, {address: 10.0.0.4, locality: us/a}]
---
kind: DestinationRule
metadata: {name: near, namespace: default}
spec: {host: near.example.com, trafficPolicy: {outlierDetection: {interval: 5s}}}
---
kind: DestinationRule
metadata: {name: any, namespace: default}
spec: {host: any.example.com, workloadSelector: {matchLabels: {app: special}}, trafficPolicy: {tls: {mode: MUTUAL, credentialName: client}}}
`

func placedAt(t *testing.T, text string) (*snapshot.Mesh, *Generator) {
	t.Helper()
	return snapshot.Build(nil, inputOf(decode(t, strings.TrimSpace(text)), meshconfig.Default()), model.Change{All: true}), New(Config{})
}

func proxyIn(locality string) *model.Proxy {
	p := proxyAt("127.1.0.2")
	p.Locality, p.Labels = locality, nil
	return p
}

// TestProxiesOfPlacesShare checks that proxies at different locations differ only in what depends
// on the location.
func TestProxiesOfPlacesShare(t *testing.T) {
	t.Parallel()
	mesh, g := placedAt(t, placedMesh)
	const near, other = "outbound|80||near.example.com", "outbound|80||any.example.com"
	eu, us := g.Generate(mesh, proxyIn("eu/a"), xds.TypeEndpoint), g.Generate(mesh, proxyIn("us/a"), xds.TypeEndpoint)
	if eu.Get(other) != us.Get(other) || eu.Get(near) == us.Get(near) {
		t.Error("proxies of two places must share the endpoints of one service, and not those of the other")
	}
	if again := g.Generate(mesh, proxyIn("eu/a"), xds.TypeEndpoint); again != eu {
		t.Error("proxies of one place do not share")
	}
	if a, b := g.Generate(mesh, proxyIn("eu/a"), xds.TypeCluster), g.Generate(mesh, proxyIn("us/a"), xds.TypeCluster); !slices.Equal(a.Resources, b.Resources) {
		t.Error("clusters whose endpoints are sent depend on the place")
	}
	first := unpack(t, us.Get(near)).(*endpointv3.ClusterLoadAssignment).GetEndpoints()[0]
	if region := first.GetLocality().GetRegion(); region != "us" || first.GetPriority() != 0 {
		t.Errorf("from us the first endpoints are in %s, of priority %d", region, first.GetPriority())
	}
	plain, g := placedAt(t, placedMesh[:strings.Index(placedMesh, "---\nkind: DestinationRule")])
	if g.Generate(plain, proxyIn("eu/a"), xds.TypeEndpoint) != g.Generate(plain, proxyIn("us/a"), xds.TypeEndpoint) {
		t.Error("without rules the place makes a difference")
	}
}

// TestPlaceOfEndpoint checks that a proxy without a location uses that of its endpoints.
func TestPlaceOfEndpoint(t *testing.T) {
	t.Parallel()
	mesh, g := placedAt(t, placedMesh)
	p := proxyIn("")
	p.IPs = []string{"10.0.0.4"}
	p.Interception = model.InterceptionNone
	first := unpack(t, g.Generate(mesh, p, xds.TypeEndpoint).Get("outbound|80||near.example.com")).(*endpointv3.ClusterLoadAssignment).GetEndpoints()[0]
	if region := first.GetLocality().GetRegion(); region != "us" {
		t.Errorf("the first endpoints are in %s, want us", region)
	}
}

// TestCredentialOfSidecar checks that a Secret requires a rule that selects the sidecar, and that
// it is never replaced by plaintext.
func TestCredentialOfSidecar(t *testing.T) {
	t.Parallel()
	const name = "outbound|80||any.example.com"
	special := proxyIn("")
	special.Labels = map[string]string{"app": "special"}
	unselected := strings.Replace(placedMesh, "workloadSelector: {matchLabels: {app: special}}, ", "", 1)
	gateway := proxyIn("")
	gateway.Proxyless = true
	for _, tc := range []struct {
		name, text string
		proxy      *model.Proxy
		want       bool // whether there is a cluster
		secret     bool // whether it names the Secret
	}{
		{"selected", placedMesh, special, true, true},
		{"another workload", placedMesh, proxyIn(""), true, false},
		{"a rule for all", unselected, special, false, false},
		{"no Envoy", unselected, gateway, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			mesh, g := placedAt(t, tc.text)
			clusters, endpoints := g.Generate(mesh, tc.proxy, xds.TypeCluster), g.Generate(mesh, tc.proxy, xds.TypeEndpoint)
			r := clusters.Get(name)
			if (r != nil) != tc.want || (endpoints.Get(name) != nil) != tc.want {
				t.Fatalf("cluster %v, endpoints %v, want %v", r != nil, endpoints.Get(name) != nil, tc.want)
			}
			if r != nil && strings.Contains(string(r.Any), "kubernetes://client-cacert") != tc.secret {
				t.Errorf("the cluster names the Secret: %v, want %v", !tc.secret, tc.secret)
			}
		})
	}
}
