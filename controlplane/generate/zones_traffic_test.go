// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// zones are services with endpoints in two zones, and a workload with a proxy in each. PORT_A and PORT_B
// are ports of applications.
const zones = `
kind: ServiceEntry
metadata: {name: near, namespace: default}
spec:
  hosts: [near.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}, {number: 8081, name: all, protocol: HTTP}]
  endpoints:
  - {address: 127.0.0.1, locality: eu/a, ports: {http: PORT_A, all: PORT_A}}
  - {address: 127.0.0.1, locality: eu/b, ports: {http: PORT_B, all: PORT_B}}
---
kind: DestinationRule
metadata: {name: near, namespace: default}
spec:
  host: near.example.com
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN, zoneAwareLbSetting: {minClusterSize: 1}}
    portLevelSettings: [{port: {number: 8081}, loadBalancer: {simple: ROUND_ROBIN, zoneAwareLbSetting: {enabled: false}}}]
---
kind: ServiceEntry
metadata: {name: self, namespace: default}
spec:
  hosts: [self.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.56.95, locality: eu/a}, {address: 127.77.56.96, locality: eu/b}]
`

// TestEnvoyZones checks that Envoy prefers the zone of its workload, unless the rule says otherwise.
func TestEnvoyZones(t *testing.T) {
	t.Parallel()
	const address = "127.77.56.95"
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	text := strings.NewReplacer("PORT_A", backend(t, "a"), "PORT_B", backend(t, "b")).Replace(zones)
	mesh := snapshot.Build(nil, inputOf(decode(t, text), settings), model.Change{All: true})
	proxy := proxyAt(address)
	at := freePorts(t, address, 1)[0]
	port, err := strconv.ParseUint(at, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HTTPProxyPort, proxy.Locality, proxy.SelfDiscovery = uint32(port), "eu/a", true

	var bootstrap, agents map[string]any
	for to, from := range map[*map[string]any][]byte{&bootstrap: serveDelta(t, mesh, proxy), &agents: read(t, "../../bootstrap/testdata/locality/want.json")} {
		if err := json.Unmarshal(from, to); err != nil {
			t.Fatal(err)
		}
	}
	bootstrap["cluster_manager"] = agents["cluster_manager"]
	bootstrap["node"].(map[string]any)["locality"] = map[string]any{"region": "eu", "zone": "a"}
	static := bootstrap["static_resources"].(map[string]any)
	for _, c := range agents["static_resources"].(map[string]any)["clusters"].([]any) {
		if c.(map[string]any)["name"] == "local_cluster" {
			static["clusters"] = append(static["clusters"].([]any), c)
		}
	}
	b, err := json.Marshal(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	runEnvoy(t, envoytest.Binary(t), b, address+":"+at)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address + ":" + at})}}
	for target, want := range map[string]string{"http://near.example.com:8080/": "a", "http://near.example.com:8081/": "a b"} {
		seen := map[string]bool{}
		for range 40 {
			status, body := get(t, client, target, "")
			word, _, _ := strings.Cut(body, " ")
			if seen[word] = true; status != http.StatusOK {
				t.Fatalf("%s: %d %s", target, status, body)
			}
		}
		words := []string{}
		for word := range seen {
			words = append(words, word)
		}
		slices.Sort(words)
		if got := strings.Join(words, " "); got != want {
			t.Errorf("%s reaches %s, want %s", target, got, want)
		}
	}
}

// TestOwnEndpoints checks which proxies have the endpoints of their workload, and that it is reported
// where one has none and a rule needs them.
func TestOwnEndpoints(t *testing.T) {
	t.Parallel()
	mesh, g := placedAt(t, strings.NewReplacer("PORT_A", "9001", "PORT_B", "9002").Replace(zones))
	endpoints := func(address string, asks bool) *xds.Set {
		p := proxyAt(address)
		p.SelfDiscovery = asks
		return g.Generate(mesh, p, xds.TypeEndpoint)
	}
	a, b := endpoints("127.77.56.95", true), endpoints("127.77.56.96", true)
	plain, stranger := endpoints("127.77.56.95", false), endpoints("127.77.56.97", true)
	if r := a.Get("local_cluster"); r == nil || r != b.Get("local_cluster") {
		t.Error("the proxies of a workload do not share its endpoints")
	}
	if r := stranger.Get("local_cluster"); r == nil || r == a.Get("local_cluster") {
		t.Error("a proxy without a service has no resource, for which its Envoy would wait, or that of others")
	}
	if plain.Get("local_cluster") != nil {
		t.Error("a proxy that does not ask has the endpoints of its workload")
	}
	if len(a.Problems) != 0 || len(plain.Problems) != 1 || plain.Problems[0].Object.Name != "near" || !plain.Problems[0].Warning {
		t.Errorf("problems: %v with, %v without", a.Problems, plain.Problems)
	}
}
