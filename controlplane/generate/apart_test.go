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

// TestStreamsOfOwnAddress checks which TCP services have a listener at the loopback address of a
// workload, and that the others have a problem with a cure, or none where requests reach them otherwise.
func TestStreamsOfOwnAddress(t *testing.T) {
	t.Parallel()
	const objects = `
kind: ServiceEntry
metadata: {name: a, namespace: default}
spec:
  hosts: [a.test]
  resolution: STATIC
  ports: [{number: 443, name: tls}, {number: 5432, name: tcp-a}, {number: 6379, name: redis}, {number: 7000, name: any}, {number: 8000, name: http}, {number: 9000, name: udp}]
  endpoints: [{address: 10.0.0.1}]
---
kind: ServiceEntry
metadata: {name: b, namespace: default}
spec:
  hosts: [b.test]
  resolution: STATIC
  ports: [{number: 443, name: tls}, {number: 5432, name: tcp-b}]
  endpoints: [{address: 10.0.0.2}]
---
kind: ServiceEntry
metadata: {name: own, namespace: default}
spec:
  hosts: [own.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4000, name: tcp}]
  endpoints: [{address: 127.1.0.2}]
---
kind: Sidecar
metadata: {name: own, namespace: default}
spec:
  ingress: [{port: {number: 4000, protocol: TCP, name: tcp}, bind: 127.1.0.2, defaultEndpoint: "127.0.0.1:4000"}]
`
	mesh := snapshot.Build(nil, inputOf(decode(t, objects), meshconfig.Default()), model.Change{All: true})
	for name, tc := range map[string]struct {
		change    func(*model.Proxy)
		listeners string
		problem   string // of the last object
	}{
		"all ports":    {func(*model.Proxy) {}, "127.1.0.2_443 127.1.0.2_5432 127.1.0.2_6379", "give the port another number"},
		"unprivileged": {func(p *model.Proxy) { p.Settings = model.ProxySettings{Unprivileged: true}.Keyed() }, "127.1.0.2_5432 127.1.0.2_6379", "port 5432 of the address of each workload"},
		"taken":        {func(p *model.Proxy) { p.Occupied = []uint32{443, 5432, 6379} }, "", "the proxy cannot listen at 127.1.0.2:5432"},
		"no own address": {func(p *model.Proxy) {
			p.IPs = []string{"10.0.0.9"}
		}, "", ""},
		"a gateway": {func(p *model.Proxy) { p.Role = "router" }, "", ""},
	} {
		proxy := proxyAt("127.1.0.2")
		proxy.HTTPProxyPort = 15080
		tc.change(proxy)
		validateWithEnvoy(t, envoytest.Binary(t), mesh, proxy)
		set := New(Config{}).Generate(mesh, proxy, xds.TypeListener)
		var names []string
		for _, r := range set.Resources {
			if r.Name != "127.1.0.2_15080" && r.Name != "127.0.0.1_15080" && r.Name != "127.1.0.2_4000" {
				names = append(names, r.Name)
			}
		}
		if got := strings.Join(names, " "); got != tc.listeners {
			t.Errorf("%s: listeners %s, want %s", name, got, tc.listeners)
		}
		if n := len(set.Problems); (n == 0) != (tc.problem == "") || n > 0 && !strings.Contains(set.Problems[n-1].Reason, tc.problem) {
			t.Errorf("%s: problems %v, want %q", name, set.Problems, tc.problem)
		}
	}
}
