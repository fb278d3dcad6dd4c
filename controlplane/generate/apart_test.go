// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// apart returns the listeners of a proxy with redirected traffic and checks that Envoy accepts
// them.
func apart(t *testing.T, objects string) *xds.Set {
	t.Helper()
	mesh := snapshot.Build(nil, inputOf(decode(t, objects), meshconfig.Default()), model.Change{All: true})
	proxy := proxyAt("10.0.0.9")
	proxy.Interception = model.InterceptionRedirect
	validateWithEnvoy(t, envoytest.Binary(t), mesh, proxy)
	return New(Config{}).Generate(mesh, proxy, xds.TypeListener)
}

// tells fails unless the problems belong to these objects, in this order.
func tells(t *testing.T, set *xds.Set, want ...string) {
	t.Helper()
	var got []string
	for _, p := range set.Problems {
		got = append(got, p.Object.String())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("problems %v, want those of %v", set.Problems, want)
	}
}

// TestServiceAtPortOfTheProxy checks that a service on a port of the proxy itself loses its
// listener, and that the proxy keeps its own.
func TestServiceAtPortOfTheProxy(t *testing.T) {
	t.Parallel()
	set := apart(t, `
kind: ServiceEntry
metadata: {name: web, namespace: other}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: 15001, name: http-a}, {number: 15006, name: http-b}, {number: 15021, name: http-c}, {number: 15090, name: http-d}, {number: 15091, name: http-e}]
  endpoints: [{address: 10.0.0.1}]
---
kind: ServiceEntry
metadata: {name: stream, namespace: other}
spec: {hosts: [stream.test], addresses: [10.96.0.1], resolution: STATIC, ports: [{number: 15001, name: tcp}], endpoints: [{address: 10.0.0.1}]}
`)
	for name, want := range map[string]bool{
		"virtualOutbound": true, "virtualInbound": true, "0.0.0.0_15091": true, "10.96.0.1_15001": true,
		"0.0.0.0_15001": false, "0.0.0.0_15006": false, "0.0.0.0_15021": false, "0.0.0.0_15090": false,
	} {
		if got := set.Get(name) != nil; got != want {
			t.Errorf("the listener %s is there: %t", name, got)
		}
	}
	tells(t, set, "ServiceEntry/other/web", "ServiceEntry/other/web", "ServiceEntry/other/web", "ServiceEntry/other/web")
}

// TestSidecarNamesOneAddressTwice checks that only one of several Sidecar listeners at the same
// address is served, even if the address is written in different ways.
func TestSidecarNamesOneAddressTwice(t *testing.T) {
	t.Parallel()
	set := apart(t, `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec: {hosts: [web.test], resolution: STATIC, ports: [{number: 9080, name: http}], endpoints: [{address: 10.0.0.1}]}
---
kind: Sidecar
metadata: {name: all, namespace: default}
spec:
  ingress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: "::1", captureMode: NONE, defaultEndpoint: "127.0.0.1:80"}]
  egress:
  - {port: {number: 9080, name: http, protocol: HTTP}, bind: "0:0::1", captureMode: NONE, hosts: ["*/*"]}
  - {port: {number: 9080, name: http, protocol: HTTP}, bind: "fe80::1%eth0", captureMode: NONE, hosts: ["*/*"]}
`)
	if set.Get("::1_9080") == nil || len(set.Resources) != 3 {
		t.Errorf("%d listeners, want that of the ingress and the two of redirected traffic", len(set.Resources))
	}
	tells(t, set, "Sidecar/default/all")
}

// TestWorkloadAtPortOfTheProxy checks that an application that listens at the port for redirected
// traffic is not served, and that everything else is.
func TestWorkloadAtPortOfTheProxy(t *testing.T) {
	t.Parallel()
	set := apart(t, `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: 80, name: http, targetPort: 15006}, {number: 81, name: http-b, targetPort: 8080}]
  endpoints: [{address: 10.0.0.9}]
`)
	chains := map[uint32]int{}
	for _, c := range unpack(t, set.Get("virtualInbound")).(*listenerv3.Listener).GetFilterChains() {
		chains[c.GetFilterChainMatch().GetDestinationPort().GetValue()]++
	}
	if chains[15006] != 1 || chains[8080] == 0 {
		t.Errorf("chains by port %v: want the one that ends connections at 15006, and those of 8080", chains)
	}
	tells(t, set, "ServiceEntry/default/web")
}

// TestServerNamesOverlap checks that the first chain keeps a shared name and later chains keep
// their other names. Names that cannot occur in TLS do not invalidate the others.
func TestServerNamesOverlap(t *testing.T) {
	t.Parallel()
	set := apart(t, `
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec: {hosts: [a.test, b.test, "*.c.test"], resolution: STATIC, ports: [{number: 443, name: tls}], endpoints: [{address: 10.0.0.1}]}
---
kind: VirtualService
metadata: {name: one, namespace: default}
spec:
  hosts: [a.test]
  tls:
  - {match: [{sniHosts: [A.test, a.test, "*foo"], destinationSubnets: [10.1.0.0/16]}], route: [{destination: {host: a.test, subset: near}}]}
  - {match: [{sniHosts: [a.test, b.test], destinationSubnets: [10.1.2.3/16, 10.2.0.0/16]}], route: [{destination: {host: a.test, subset: far}}]}
`)
	got := map[string]string{}
	for _, c := range unpack(t, set.Get("0.0.0.0_443")).(*listenerv3.Listener).GetFilterChains() {
		m := c.GetFilterChainMatch()
		var prefixes []string
		for _, p := range m.GetPrefixRanges() {
			prefixes = append(prefixes, p.GetAddressPrefix())
		}
		_, subset, _ := strings.Cut(string(c.GetFilters()[0].GetTypedConfig().GetValue()), "outbound|443|")
		subset, _, _ = strings.Cut(subset, "|")
		got[strings.Join(m.GetServerNames(), ",")+" "+strings.Join(prefixes, ",")] = subset
	}
	want := map[string]string{"a.test 10.1.0.0": "near", "a.test 10.2.0.0": "far", "b.test 10.1.0.0,10.2.0.0": "far", "b.test ": "", "*.c.test ": ""}
	if len(got) != len(want) {
		t.Errorf("chains %v, want %v", got, want)
	}
	for match, subset := range want {
		if there, ok := got[match]; !ok || there != subset {
			t.Errorf("%q leads to the subset %q, %t; want %q", match, there, ok, subset)
		}
	}
}
