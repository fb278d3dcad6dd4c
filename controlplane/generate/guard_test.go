// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

const guardWorld = `
kind: ServiceEntry
metadata: {name: pay, namespace: default}
spec: {hosts: [pay.example.com], ports: [{number: 80, name: http, protocol: HTTP}, {number: 90, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 127.1.0.2, serviceAccount: pay}, {address: 127.1.0.9, serviceAccount: pay}]}
---
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"], tls: {httpsRedirect: true}}]}
---
kind: VirtualService
metadata: {name: edge, namespace: default}
spec: {hosts: ["pay.example.com"], gateways: [edge], http: [{route: [{destination: {host: pay.example.com, port: {number: 80}}}]}]}
`

// TestGuard checks that the guard of a resource changes with its security settings, and not with
// routing or tuning.
func TestGuard(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edge     bool
		add      string // an additional object
		old, new string // or a change of the world
		want     string // resources whose guard differs
		changes  bool   // whether any resource differs
	}{
		"PeerAuthentication": {
			add:  "kind: PeerAuthentication\nmetadata: {name: default, namespace: default}\nspec: {mtls: {mode: STRICT}}",
			want: "virtualInbound", changes: true,
		},
		"TLS of a DestinationRule": {
			add:  "kind: DestinationRule\nmetadata: {name: pay, namespace: default}\nspec: {host: pay.example.com, trafficPolicy: {tls: {mode: SIMPLE, sni: pay}}}",
			want: "outbound|80||pay.example.com outbound|90||pay.example.com", changes: true,
		},
		"limits of a DestinationRule": {
			add:     "kind: DestinationRule\nmetadata: {name: pay, namespace: default}\nspec: {host: pay.example.com, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}, loadBalancer: {simple: RANDOM}}}",
			changes: true,
		},
		"routes and faults of a VirtualService": {
			add: "kind: VirtualService\nmetadata: {name: pay, namespace: default}\n" +
				"spec: {hosts: [pay.example.com], http: [{fault: {abort: {httpStatus: 503, percentage: {value: 1}}}, timeout: 3s, route: [{destination: {host: pay.example.com}, headers: {request: {set: {a: b}}}}]}]," +
				" tcp: [{match: [{port: 90}], route: [{destination: {host: pay.example.com, port: {number: 80}}}]}]}",
			changes: true,
		},
		"redirect to TLS at a gateway": {
			edge: true, old: "httpsRedirect: true", new: "", want: "http.80", changes: true,
		},
		"route at a gateway": {
			edge: true, old: "number: 80}}}]}]", new: "number: 80}}}], timeout: 7s}]", changes: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			made := func(text string) map[string]*xds.Resource {
				mesh := snapshot.Build(nil, inputOf(decode(t, text), nil), model.Change{All: true})
				proxy := &model.Proxy{
					ID: "pay.default", Role: "sidecar", IPs: []string{"127.1.0.2"}, Namespace: "default", ServiceAccount: "pay",
					Domain: "default.svc.cluster.local", Interception: model.InterceptionRedirect,
				}
				if tc.edge {
					proxy.Role, proxy.Labels = "router", map[string]string{"app": "edge"}
				}
				out := map[string]*xds.Resource{}
				for i, set := range generateAll(New(Config{}), mesh, proxy) {
					for _, res := range set.Resources {
						if xds.Types[i] != xds.TypeEndpoint { // endpoints have the names of clusters
							out[res.Name] = res
						}
					}
				}
				return out
			}
			text := guardWorld
			if tc.add != "" {
				text += "---\n" + tc.add + "\n"
			}
			if tc.old != "" {
				text = strings.ReplaceAll(text, tc.old, tc.new)
			}
			before, after := made(guardWorld), made(text)
			var got []string
			changes := false
			for _, name := range slices.Sorted(maps.Keys(after)) {
				a, b := before[name], after[name]
				changes = changes || a == nil || a.Hash != b.Hash
				if a != nil && Guard(a) != Guard(b) {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" || changes != tc.changes {
				t.Errorf("something changes: %t, want %t\nguards (-want +got):\n%s", changes, tc.changes, diff)
			}
		})
	}
	if Guard(nil) != 0 || Guard(&xds.Resource{Any: []byte("x")}) != 0 {
		t.Error("nothing has a guard")
	}
}

// TestClaimedLabelsProtect checks that the labels that a proxy claims select its security settings
// until its workload is known, and nothing else.
func TestClaimedLabelsProtect(t *testing.T) {
	t.Parallel()
	mesh := snapshot.Build(nil, inputOf(decode(t, guardWorld+"---\n"+
		"kind: PeerAuthentication\nmetadata: {name: pay, namespace: default}\nspec: {selector: {matchLabels: {app: pay}}, mtls: {mode: STRICT}}\n---\n"+
		"kind: Sidecar\nmetadata: {name: pay, namespace: default}\nspec: {workloadSelector: {labels: {app: pay}}, egress: [{hosts: [./nothing.example.com]}]}\n"), nil), model.Change{All: true})
	made := func(labels, claimed map[string]string) (guard uint64, clusters int) {
		proxy := &model.Proxy{
			ID: "pay.default", Role: "sidecar", IPs: []string{"127.1.0.3"}, Namespace: "default", ServiceAccount: "pay",
			Domain: "default.svc.cluster.local", Interception: model.InterceptionRedirect, Labels: labels, ClaimedLabels: claimed,
		}
		g := New(Config{})
		return Guard(g.Generate(mesh, proxy, xds.TypeListener).Get("virtualInbound")), len(g.Generate(mesh, proxy, xds.TypeCluster).Resources)
	}
	pay := map[string]string{"app": "pay"}
	strict, few := made(pay, nil)
	open, all := made(nil, nil)
	guard, clusters := made(nil, pay)
	if strict == open || few == all {
		t.Fatal("the labels choose nothing")
	}
	if guard != strict || clusters != all {
		t.Errorf("claimed labels: STRICT %t, %d clusters, want %d", guard == strict, clusters, all)
	}
}

// TestGuardOfCases checks that each listener has a guard, and that guards are deterministic.
func TestGuardOfCases(t *testing.T) {
	t.Parallel()
	for _, c := range testCases(t) {
		for i, set := range generateAll(New(Config{}), c.build(), c.proxy) {
			for _, res := range set.Resources {
				if g := Guard(res); g != Guard(res) || xds.Types[i] == xds.TypeListener && g == 0 {
					t.Errorf("%s: the guard of %s is %x", c.name, res.Name, g)
				}
			}
		}
	}
}
