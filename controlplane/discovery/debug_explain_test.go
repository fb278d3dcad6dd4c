// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"
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

// debugGet sends a query over HTTP, from this machine.
func debugGet(t testing.TB, s *Server, path string, into any) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/debug/"+path, nil)
	r.RemoteAddr = "127.77.51.3:1"
	w := httptest.NewRecorder()
	s.DebugHandler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
}

// eventually repeats a query until the response is as expected.
func eventually[T any](t *testing.T, s *Server, path, what string, is func(T) bool) T {
	t.Helper()
	var got T
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var zero T
		got = zero
		if debugGet(t, s, path, &got); is(got) {
			return got
		}
	}
	t.Fatalf("not within 2 minutes: %s: %s is %+v", what, path, got)
	return got
}

const (
	explainWeb  = "explain?kind=VirtualService&namespace=default&name=web"
	explainShop = "explain?proxyID=shop.default"
)

// TestExplain follows a change of a VirtualService to a proxy that is slow, and
// then rejects it.
func TestExplain(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects, changed := debugtest.Shop(), map[model.Key]uint64{}
	h.server.Debug(debug.Config{
		Replica: "one", Version: "v1", Objects: objects,
		Changed: func(k model.Key) (uint64, time.Time, bool) {
			return max(1, changed[k]), time.Unix(100, 0), changed[k] == 0
		},
		Problems: func() []debug.KnownProblem {
			return []debug.KnownProblem{{Problem: model.Problem{Object: objects[4].Key, Reason: "spec.http: odd", Warning: true}, Since: time.Unix(90, 0)}}
		},
	})
	first := objects.Mesh(nil)
	h.server.Push(first, model.Change{All: true})
	p := h.join(t, "shop", "default")
	p.ack(xds.TypeCluster)
	p.subscribe(xds.TypeListener)
	p.any()
	p.ack(xds.TypeListener)
	p.subscribe(xds.TypeRoute, "http_proxy")
	p.any()
	p.ack(xds.TypeRoute)
	o := eventually(t, h.server, explainWeb, "all has been answered", func(o report.Object) bool { return len(o.Proxies) == 1 && o.Proxies[0].State == report.Synced })
	if o.Proxies[0].Proxy != "shop.default" || !o.Found || !o.InForce || !o.Started || o.Source != "shop.yaml:1" {
		t.Errorf("got %+v", o)
	}
	if len(o.Resources) != 1 || o.Resources[0] != (report.Resource{Type: "rds", Name: "http_proxy", Proxies: 1}) {
		t.Errorf("got the resources %+v", o.Resources)
	}
	if len(o.Problems) != 1 || o.Problems[0].Reason != "spec.http: odd" || !o.Problems[0].Since.Equal(time.Unix(90, 0)) {
		t.Errorf("got the problems %+v", o.Problems)
	}

	changed[objects[4].Key] = 2
	spec := objects[4].Spec.(*networkingv1alpha3.VirtualService)
	objects[4] = debugtest.Stored(model.VirtualService, "default", "web", &networkingv1alpha3.VirtualService{
		Hosts: spec.Hosts, Http: []*networkingv1alpha3.HTTPRoute{{Name: "new", Route: spec.Http[0].Route}},
	})
	h.server.Push(objects.Mesh(first), model.Change{All: true})
	p.any()
	o = eventually(t, h.server, explainWeb, "the routes are unanswered", func(o report.Object) bool { return o.Proxies[0].State == report.Stale })
	if o.Proxies[0].What != "no answer yet to rds" || o.Proxies[0].Since.IsZero() {
		t.Errorf("got %+v", o.Proxies)
	}
	p.nack(xds.TypeRoute, "Error adding/updating route(s) http_proxy: no such thing")
	o = eventually(t, h.server, explainWeb, "the change was rejected", func(o report.Object) bool { return o.Proxies[0].State == report.Rejected })
	s := o.Proxies[0]
	if s.What != "rds http_proxy" || !strings.Contains(s.Reason, "no such thing") || !s.LastGood || s.By != "shop.default" || o.Resources[0].HeldBack != 1 || o.Started {
		t.Errorf("got %+v, %+v", s, o.Resources)
	}

	var d report.Decided
	debugGet(t, h.server, explainShop, &d)
	var words []string
	for _, part := range d.Objects {
		words = append(words, fmt.Sprint(part.Kind, "/", part.Name, part.Resources))
		if want := objects.Get(model.Key{Kind: model.Kind(part.Kind), Namespace: part.Namespace, Name: part.Name}).Source; part.Source != want {
			t.Errorf("%s is at %q, want %q", part.Name, part.Source, want)
		}
	}
	want := "Sidecar/shopmap[cds:1 lds:1] PeerAuthentication/defaultmap[lds:1] VirtualService/webmap[rds:1] DestinationRule/webmap[cds:2 eds:2] " +
		"ServiceEntry/amap[cds:1 eds:1 rds:1] ServiceEntry/webmap[cds:2 eds:2 rds:1] WorkloadEntry/web-1map[eds:2] WorkloadEntry/web-2map[eds:1]"
	if got := strings.Join(words, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(d.Held) != 1 || d.Held[0].Name != "http_proxy" || len(d.Held[0].Objects) != 1 || d.Held[0].Objects[0].Source != "shop.yaml:1" || len(d.Problems) != 1 {
		t.Errorf("got %+v, %+v", d.Held, d.Problems)
	}
	replica := eventually(t, h.server, "proxies", "there is a state", func(r report.Replica) bool { return len(r.Proxies) == 1 })
	i := slices.IndexFunc(replica.Proxies[0].Types, func(t report.Type) bool { return t.Name == "rds" })
	if rds := replica.Proxies[0].Types[i]; rds.State != report.Rejected || rds.Resources != 1 || rds.Since.IsZero() || replica.Snapshot != 2 || replica.Problems != 1 {
		t.Errorf("got %+v of %+v", rds, replica)
	}
	// The last accepted routes are sent in the round after the rejection.
	type dump struct{ Configs []json.RawMessage }
	eventually(t, h.server, "config_dump?proxyID=shop.default", "the dump shows what is given and what was refused", func(d dump) bool {
		routes := string(d.Configs[2])
		return strings.Contains(routes, "no such thing") && strings.Contains(routes, `"failedConfiguration"`) && strings.Count(routes, `"name":"new"`) == 1
	})
}

// TestExplainOthers explains objects without effect.
func TestExplainOthers(t *testing.T) {
	t.Parallel()
	h := startDebug(t, false)
	merge := func(cluster string) *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch {
		return &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
			ApplyTo: networkingv1alpha3.EnvoyFilter_CLUSTER,
			Match: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{ObjectTypes: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Cluster{
				Cluster: &networkingv1alpha3.EnvoyFilter_ClusterMatch{Name: cluster},
			}},
			Patch: &networkingv1alpha3.EnvoyFilter_Patch{
				Operation: networkingv1alpha3.EnvoyFilter_Patch_MERGE,
				Value:     &structpb.Struct{Fields: map[string]*structpb.Value{"alt_stat_name": structpb.NewStringValue("other")}},
			},
		}
	}
	objects := append(debugtest.Shop(), debugtest.Stored(model.EnvoyFilter, "default", "named", &networkingv1alpha3.EnvoyFilter{
		ConfigPatches: []*networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{merge("outbound|80||web.default.svc.cluster.local"), merge("gone")},
	}))
	h.server.Debug(debug.Config{Objects: objects, Preview: func() debug.Generator { return generate.New(generate.Config{}) }})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	h.join(t, "shop", "default")
	for query, want := range map[string]string{
		"kind=EnvoyFilter&namespace=default&name=named":   `"reason":"spec.configPatches[1] (CLUSTER MERGE) changes nothing: none of 1 proxies has what it matches"`,
		"kind=EnvoyFilter&namespace=default&name=logs":    `"found":true,"in_force":true`,
		"kind=VirtualService&namespace=default&name=none": `"found":false,"in_force":true`,
		"kind=WorkloadEntry&namespace=default&name=web-2": `"outbound|80||web.default.svc.cluster.local"`,
		"kind=Sidecar&namespace=default&name=shop":        `"proxy":"shop.default"`,
	} {
		var raw json.RawMessage
		debugGet(t, h.server, "explain?"+query, &raw)
		if !strings.Contains(string(raw), want) {
			t.Errorf("%s: %s lacks %s", query, raw, want)
		}
	}
}

// noPast knows no versions of objects.
type noPast struct{}

func (noPast) List(revisions.Filter) (report.History, error) {
	return report.History{Versions: []report.Version{}}, nil
}

func (noPast) Changes(time.Time, time.Time) ([]report.Changed, error) { return nil, nil }

// TestDebugMore sends each query.
func TestDebugMore(t *testing.T) {
	t.Parallel()
	h := startDebug(t, true)
	objects, pushed := debugtest.Shop(), 0
	h.server.Debug(debug.Config{
		Objects: objects, Push: func() { pushed++ }, Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, _ debug.Proposal) debug.Outcome {
			return debug.Outcome{Mesh: objects.Mesh(prev)}
		},
		Changed: func(model.Key) (uint64, time.Time, bool) { return 1, time.Unix(1, 0), true },
		Past:    noPast{},
	})
	h.server.Push(objects.Mesh(nil), model.Change{All: true})
	p := h.join(t, "shop", "default")
	p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeCluster, ResponseNonce: p.nonce[xds.TypeCluster]})
	// What was sent is noted after the proxy has it.
	eventually(t, h.server, "adsz", "the clusters are sent", func(raw json.RawMessage) bool { return strings.Contains(string(raw), `"watches":{"cds":6}`) })
	asked := map[string]bool{}
	policy := url.QueryEscape(`{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "none"}, "spec": {}}`)
	for path, want := range map[string]string{
		"list": `"explain"`, "syncz": `"proxy":"shop.default"`, "connections": `"totalClients":1`, "adsz": `"watches":{"cds":6}`,
		"adsz?push=true": `{"pushed":1}`, "proxies": `"name":"shop.default"`, explainWeb: `"VirtualService"`, "config_dump?proxyID=shop.default": `"web.default.svc.cluster.local"`,
		"resourcesz?proxyID=shop.default": `"inbound|8080||"`, "sidecarz?proxyID=shop.default": `"sidecar":"default/shop"`,
		"instancesz": `"shop.default":[]`, "ndsz?proxyID=shop.default": "a.example.com", "edsz?proxyID=shop.default": "127.77.51.9", "ecdsz?proxyID=shop.default": "[]", "clusterz": "[]",
		"config_distribution?resource=VirtualService/default/web": `"proxy":"shop.default"`, "registryz": "a.example.com", "endpointz": "127.77.54.9",
		"request?from=none&to=shop.default&port=8080": `"decided_by"`, "replay?to=shop.default&policies=" + policy: `"flips":[]`, "whatif?objects=" + policy: `"action":"created"`, "history?name=web": `"versions":[]`, "changes?from=2026-01-01T00:00:00Z": `"objects":[]`, "analyze": `"objects":`, "configz?kind=Sidecar": `"kind":"Sidecar"`, "push_status": "[]", "pushcontext": `"services":2`, "mesh": `"proxyHttpPort":15080`,
	} {
		var raw json.RawMessage
		debugGet(t, h.server, path, &raw)
		if !strings.Contains(strings.ReplaceAll(string(raw), " ", ""), want) {
			t.Errorf("%s: %s lacks %s", path, raw, want)
		}
		name, _, _ := strings.Cut(path, "?")
		asked[name] = true
	}
	var names []string
	debugGet(t, h.server, "list", &names)
	for _, name := range names {
		if !asked[name] {
			t.Errorf("no test sends the query %s", name)
		}
	}
	if pushed != 1 {
		t.Errorf("pushes = %d, want 1", pushed)
	}
}
