// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func parse(t *testing.T, text string) *networkingv1alpha3.VirtualService {
	t.Helper()
	vs := &networkingv1alpha3.VirtualService{}
	if err := protojson.Unmarshal([]byte(text), vs); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return vs
}

// TestDelegateMatches checks the intersection of the match of a route with that of its delegate's
// route.
func TestDelegateMatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, root, sub string // matches as JSON; empty means none
		want            string // the merged matches, or the name of the conflicting field
	}{
		{"none", ``, ``, ``},
		{"only the root", `{"uri":{"prefix":"/a"}}`, ``, `{"uri":{"prefix":"/a"}}`},
		{"only the delegate", ``, `{"uri":{"prefix":"/a"}}`, `{"uri":{"prefix":"/a"}}`},
		{"narrower prefix", `{"uri":{"prefix":"/a"}}`, `{"uri":{"prefix":"/a/b"}}`, `{"uri":{"prefix":"/a/b"}}`},
		{"exact under a prefix", `{"uri":{"prefix":"/a"}}`, `{"uri":{"exact":"/a/b"}}`, `{"uri":{"exact":"/a/b"}}`},
		{"wider prefix", `{"uri":{"prefix":"/a/b"}}`, `{"uri":{"prefix":"/a"}}`, `uri`},
		{"another exact", `{"uri":{"exact":"/a"}}`, `{"uri":{"exact":"/b"}}`, `uri`},
		{"prefix under an exact", `{"uri":{"exact":"/a"}}`, `{"uri":{"prefix":"/a"}}`, `uri`},
		{"regex of the root", `{"uri":{"regex":"/a.*"}}`, `{"uri":{"prefix":"/a"}}`, `uri`},
		{"regex of the delegate", `{"uri":{"prefix":"/a"}}`, `{"uri":{"regex":"/a.*"}}`, `uri`},
		{"regex beside another field", `{"uri":{"regex":"/a.*"}}`, `{"method":{"exact":"GET"}}`, `{"uri":{"regex":"/a.*"},"method":{"exact":"GET"}}`},
		{"case", `{"uri":{"prefix":"/a"},"ignoreUriCase":true}`, `{"uri":{"prefix":"/a/b"}}`, `ignoreUriCase`},
		{"case of the root", `{"uri":{"prefix":"/a"},"ignoreUriCase":true}`, `{"port":80}`, `{"uri":{"prefix":"/a"},"ignoreUriCase":true,"port":80}`},
		{"headers together", `{"headers":{"a":{"exact":"1"}}}`, `{"headers":{"b":{"prefix":"2"}}}`, `{"headers":{"a":{"exact":"1"},"b":{"prefix":"2"}}}`},
		{"presence is the wider one", `{"headers":{"a":{"exact":"1"}}}`, `{"headers":{"a":{}}}`, `{"headers":{"a":{"exact":"1"}}}`},
		{"headers that differ", `{"headers":{"a":{"exact":"1"}}}`, `{"headers":{"a":{"exact":"2"}}}`, `headers[a]`},
		{"exclusions: the wider one", `{"withoutHeaders":{"a":{"prefix":"x"}}}`, `{"withoutHeaders":{"a":{"exact":"xy"}}}`, `{"withoutHeaders":{"a":{"prefix":"x"}}}`},
		{"exclusions: of the delegate", `{"withoutHeaders":{"a":{"exact":"xy"}}}`, `{"withoutHeaders":{"a":{}}}`, `{"withoutHeaders":{"a":{}}}`},
		{"exclusions that differ", `{"withoutHeaders":{"a":{"exact":"x"}}}`, `{"withoutHeaders":{"a":{"exact":"y"}}}`, `withoutHeaders[a]`},
		{"query", `{"queryParams":{"a":{"prefix":"x"}}}`, `{"queryParams":{"a":{"exact":"xy"}}}`, `{"queryParams":{"a":{"exact":"xy"}}}`},
		{"port", `{"port":80}`, `{"port":81}`, `port`},
		{"namespace", `{"sourceNamespace":"a"}`, `{"sourceNamespace":"b"}`, `sourceNamespace`},
		{"namespace of the root", `{"sourceNamespace":"a"}`, `{"port":80}`, `{"sourceNamespace":"a","port":80}`},
		{"labels", `{"sourceLabels":{"a":"1"}}`, `{"sourceLabels":{"b":"2"}}`, `{"sourceLabels":{"a":"1","b":"2"}}`},
		{"labels that differ", `{"sourceLabels":{"a":"1"}}`, `{"sourceLabels":{"a":"2"}}`, `sourceLabels`},
		{"gateways", `{"gateways":["mesh","a/b"]}`, `{"gateways":["a/b"]}`, `{"gateways":["a/b"]}`},
		{"gateway that the root has not", `{"gateways":["mesh"]}`, `{"gateways":["a/b"]}`, `gateways`},
		{"names", `{"name":"r","statPrefix":"r"}`, `{"name":"d"}`, `{"name":"r-d","statPrefix":"r"}`},
		{
			"each with each", `{"uri":{"prefix":"/a"}},{"uri":{"prefix":"/b"}},{"method":{"exact":"GET"}}`, `{"uri":{"prefix":"/a/x"}}`,
			`{"uri":{"prefix":"/a/x"}},{"uri":{"prefix":"/a/x"},"method":{"exact":"GET"}}`,
		},
		{"one of two conflicts", `{"uri":{"prefix":"/a"}}`, `{"uri":{"prefix":"/a/x"}},{"uri":{"prefix":"/b"}}`, `uri`},
	}
	route := func(match string) *networkingv1alpha3.HTTPRoute {
		return parse(t, `{"http":[{"match":[`+match+`]}]}`).GetHttp()[0]
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, conflict := lend(route(tc.root), route(tc.sub))
			if tc.want != "" && !strings.HasPrefix(tc.want, "{") {
				if !strings.Contains(conflict, "."+tc.want+" ") {
					t.Errorf("conflict: got %q, want one in %s; merged: %v", conflict, tc.want, got)
				}
				return
			}
			if conflict != "" {
				t.Fatal(conflict)
			}
			if diff := cmp.Diff(route(tc.want), got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDelegateInherits checks that a route of a delegate inherits the fields that it does not set.
// Names must be resolved in the namespace of the object that contains them.
func TestDelegateInherits(t *testing.T) {
	t.Parallel()
	root := object(model.VirtualService, "front", "root", 0, parse(t, `{"hosts":["web"],"http":[
		{"name":"r","delegate":{"name":"lent","namespace":"back"},"timeout":"1s","retries":{"attempts":1},"fault":{"abort":{"httpStatus":500}},
		 "mirror":{"host":"copy"},"mirrorPercentage":{"value":5},"corsPolicy":{"allowMethods":["GET"]},"headers":{"request":{"remove":["a"]}},"rewrite":{"uri":"/r"}},
		{"route":[{"destination":{"host":"own"}}]}]}`))
	lent := object(model.VirtualService, "back", "lent", 0, parse(t, `{"http":[
		{"name":"d","route":[{"destination":{"host":"web"}}]},
		{"match":[{"gateways":["edge","mesh"]}],"timeout":"2s","mirrors":[{"destination":{"host":"copy"}}],"route":[{"destination":{"host":"web.example.com"}}]}]}`))
	m := objects{root, lent}.build()
	vs := m.VirtualServices.For("web.front.svc.cluster.local", "front")
	want := parse(t, `{"hosts":["web"],"http":[
		{"name":"r-d","route":[{"destination":{"host":"web.back.svc.cluster.local"}}],"timeout":"1s","retries":{"attempts":1},"fault":{"abort":{"httpStatus":500}},
		 "mirror":{"host":"copy.front.svc.cluster.local"},"mirrorPercentage":{"value":5},"corsPolicy":{"allowMethods":["GET"]},"headers":{"request":{"remove":["a"]}},"rewrite":{"uri":"/r"}},
		{"name":"r","match":[{"gateways":["back/edge","mesh"]}],"route":[{"destination":{"host":"web.example.com"}}],"timeout":"2s","retries":{"attempts":1},"fault":{"abort":{"httpStatus":500}},
		 "mirrors":[{"destination":{"host":"copy.back.svc.cluster.local"}}],"mirrorPercentage":{"value":5},"corsPolicy":{"allowMethods":["GET"]},"headers":{"request":{"remove":["a"]}},"rewrite":{"uri":"/r"}},
		{"route":[{"destination":{"host":"own"}}]}]}`)
	if diff := cmp.Diff(want, vs.Spec, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i, want := range []Origin{{lent, 0}, {lent, 1}, {root, 1}} {
		if got := vs.Origin(i); got != want {
			t.Errorf("origin of route %d: got spec.http[%d] of %s", i, got.Rule, got.Config.Key)
		}
	}
}

// TestDelegateProblems checks that a missing delegate is reported only for the object that refers
// to it, and only while it is missing.
func TestDelegateProblems(t *testing.T) {
	t.Parallel()
	vs := func(namespace, name, text string) *model.Config {
		return object(model.VirtualService, namespace, name, 0, parse(t, text))
	}
	lent := `{"http":[{"match":[{"uri":{"prefix":"/a/b"}}],"directResponse":{"status":200}}]}`
	root := vs("front", "root", `{"hosts":["web.test"],"http":[{"match":[{"uri":{"prefix":"/a"}}],"delegate":{"name":"lent","namespace":"back"}},{"directResponse":{"status":204}}]}`)
	many := `{"http":[` + strings.Repeat(`{"directResponse":{"status":200}},`, mostMatches) + `{"directResponse":{"status":201}}]}`
	tests := []struct {
		name     string
		lent     *model.Config // nil if there is none
		want     string        // empty: no problem
		dangling bool
	}{
		{"good", vs("back", "lent", lent), "", false},
		{"missing", nil, "spec.http[0].delegate: there is no VirtualService back/lent without hosts", true},
		{"in another namespace", vs("front", "lent", lent), "spec.http[0].delegate: there is no VirtualService back/lent without hosts", true},
		{"with hosts", vs("back", "lent", `{"hosts":["x.test"],"http":[{"directResponse":{"status":200}}]}`), "spec.http[0].delegate: there is no VirtualService back/lent without hosts", true},
		{"not exported", vs("back", "lent", `{"exportTo":["."],`+lent[1:]), "spec.http[0].delegate: the VirtualService back/lent is not exported to the namespace front", true},
		{"exported to none", vs("back", "lent", `{"exportTo":["~"],`+lent[1:]), "spec.http[0].delegate: the VirtualService back/lent is not exported to the namespace front", true},
		{"exported", vs("back", "lent", `{"exportTo":["front"],`+lent[1:]), "", false},
		{"conflict", vs("back", "lent", `{"http":[{"match":[{"uri":{"prefix":"/b"}}],"directResponse":{"status":200}}]}`), "spec.http[0].delegate: spec.http[0] of the VirtualService back/lent conflicts in match[0].uri", false},
		{"delegate of a delegate", vs("back", "lent", `{"http":[{"delegate":{"name":"lent"}}]}`), "spec.http[0].delegate: spec.http[0] of the VirtualService back/lent names a delegate itself", false},
		{"too many", vs("back", "lent", many), "spec.http[0].delegate: with the VirtualService back/lent the object would have 10001 matches", false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := objects{root}
			good := append(objects{root}, vs("back", "lent", lent))
			if tc.lent != nil {
				all = append(all, tc.lent)
			}
			m := all.build()
			var of []model.Problem
			for _, p := range m.Problems {
				if p.Object == root.Key {
					of = append(of, p)
				}
			}
			if tc.want == "" {
				if len(m.Problems) > 0 {
					t.Errorf("problems: got %v, want none", m.Problems)
				}
				return
			}
			if len(of) != 1 || !strings.HasPrefix(of[0].Reason, tc.want) || of[0].Dangling != tc.dangling || of[0].Source != root.Source {
				t.Fatalf("problems: got %v, want %q", m.Problems, tc.want)
			}
			fixed := Build(m, good.input(), model.NewChange(model.Key{Kind: model.VirtualService, Namespace: "back", Name: "lent"}))
			if len(fixed.Problems) > 0 {
				t.Errorf("problems after the correction: got %v, want none", fixed.Problems)
			}
			if got := fixed.VirtualServices.For("web.test", "front").Spec.GetHttp()[0].GetMatch()[0].GetUri().GetPrefix(); got != "/a/b" {
				t.Errorf("the route was not updated: %q", got)
			}
		})
	}
}

// TestDelegateChanges checks that a change of a delegate rebuilds only the objects that refer to
// it.
func TestDelegateChanges(t *testing.T) {
	t.Parallel()
	lent := func(text string) *model.Config {
		return object(model.VirtualService, "default", "lent", 0, parse(t, text))
	}
	root := object(model.VirtualService, "default", "root", 0, parse(t, `{"hosts":["root.test"],"http":[{"delegate":{"name":"lent"}}]}`))
	other := object(model.VirtualService, "default", "other", 0, parse(t, `{"hosts":["other.test"],"http":[{"directResponse":{"status":200}}]}`))
	first := lent(`{"http":[{"match":[{"sourceLabels":{"app":"a"}}],"directResponse":{"status":200}}]}`)
	before := objects{root, other, first}.build()
	if got := before.VirtualServices.SourceLabels; len(got) != 1 || got[0] != "app" {
		t.Errorf("SourceLabels = %v, want [app]", got)
	}
	second := lent(`{"http":[{"directResponse":{"status":201}}]}`)
	after := Build(before, objects{root, other, second}.input(), model.NewChange(second.Key))
	if before.VirtualServices.For("root.test", "default") == after.VirtualServices.For("root.test", "default") {
		t.Error("the object that refers to the delegate was not rebuilt")
	}
	if before.VirtualServices.For("other.test", "default") != after.VirtualServices.For("other.test", "default") {
		t.Error("an object without delegates was rebuilt")
	}
	again := Build(after, objects{root, other, lent(`{"http":[{"directResponse":{"status":201}}]}`)}.input(), model.NewChange(second.Key))
	if after.VirtualServices.For("root.test", "default") != again.VirtualServices.For("root.test", "default") {
		t.Error("the object was rebuilt although its delegate is equal")
	}
}

// TestRouteProblems checks that HTTP routes that are probably mistakes are reported.
func TestRouteProblems(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, spec, want string
		warning          bool
	}{
		{"good", `{"hosts":["a.test"],"http":[{"fault":{"delay":{"fixedDelay":"1s","percentage":{"value":1}}},"directResponse":{"status":200}}]}`, "", false},
		{"weights", `{"hosts":["a.test"],"http":[{"route":[{"destination":{"host":"web"}},{"destination":{"host":"web"}}]}]}`, "spec.http[0].route: the weights of all destinations are 0", false},
		{"delay", `{"hosts":["a.test"],"http":[{"fault":{"delay":{"fixedDelay":"1s"}},"route":[{"destination":{"host":"web"}}]}]}`, "spec.http[0].fault.delay.percentage is not set", true},
		{"abort", `{"hosts":["a.test"],"http":[{"fault":{"abort":{"httpStatus":500}},"route":[{"destination":{"host":"web"}}]}]}`, "spec.http[0].fault.abort.percentage is not set", true},
		{"mirror", `{"hosts":["a.test"],"http":[{"mirror":{"host":"x.test"},"route":[{"destination":{"host":"web"}}]}]}`, `spec.http[0].mirror.host: no service has the host "x.test"`, false},
		{"mirrors", `{"hosts":["a.test"],"http":[{"mirrors":[{"destination":{"host":"x.test"}}],"route":[{"destination":{"host":"web"}}]}]}`, `spec.http[0].mirrors[0].destination.host: no service has the host "x.test"`, false},
		{"nobody's delegate", `{"http":[{"directResponse":{"status":200}}]}`, "spec.hosts is empty", true},
		{"behind a delegate", `{"hosts":["a.test"],"http":[{"delegate":{"name":"all"}},{"directResponse":{"status":201}}]}`, "spec.http: spec.http[0] of the VirtualService default/all has no match", true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := objects{
				service("default", "web", "web.default.svc.cluster.local"), object(model.VirtualService, "default", "a", 0, parse(t, tc.spec)),
				object(model.VirtualService, "default", "all", 0, parse(t, `{"http":[{"directResponse":{"status":200}}]}`)),
				object(model.VirtualService, "default", "keeps-all-named", 1, parse(t, `{"hosts":["b.test"],"http":[{"delegate":{"name":"all"}}]}`)),
			}
			problems := all.build().Problems
			if tc.want == "" {
				if len(problems) > 0 {
					t.Errorf("problems: got %v, want none", problems)
				}
			} else if len(problems) != 1 || !strings.HasPrefix(problems[0].Reason, tc.want) || problems[0].Warning != tc.warning {
				t.Errorf("problems: got %v, want %q", problems, tc.want)
			}
		})
	}
}
