// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"os"
	"path/filepath"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// FuzzApply parses an EnvoyFilter and applies it to a listener, routes and a cluster. It checks
// that nothing panics, that no input is modified, and that the results are valid.
func FuzzApply(f *testing.F) {
	files, err := filepath.Glob("../generate/testdata/envoyfilters/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no EnvoyFilters: %v", err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	l, rc := message(f, &listenerv3.Listener{}, virtual), message(f, &routev3.RouteConfiguration{}, twoHosts)
	c := message(f, &clusterv3.Cluster{}, "{name: 'outbound|80||a.example.com', connect_timeout: 1s}")
	f.Fuzz(func(t *testing.T, text string) {
		var object struct {
			Spec map[string]any `json:"spec"`
		}
		if yaml.Unmarshal([]byte(text), &object) != nil {
			return
		}
		j, err := yaml.Marshal(object.Spec)
		if err != nil {
			return
		}
		if j, err = yaml.YAMLToJSON(j); err != nil {
			return
		}
		spec := &networkingv1alpha3.EnvoyFilter{}
		if protojson.Unmarshal(j, spec) != nil {
			return
		}
		filter, problems := Parse(&model.Config{Key: model.Key{Kind: model.EnvoyFilter, Namespace: "default", Name: "f"}, Spec: spec}, spec, Limits{}, nil)
		if len(filter.Patches)+len(problems) < len(spec.GetConfigPatches()) && len(spec.GetConfigPatches()) <= maxPatches {
			t.Errorf("%d patches: %d are valid and %d have problems", len(spec.GetConfigPatches()), len(filter.Patches), len(problems))
		}
		p := Of([]*Filter{filter}, "istio-system", &model.Proxy{Agent: "1.18.2"})
		for _, place := range []Place{{}, {Context: networkingv1alpha3.EnvoyFilter_GATEWAY}} {
			was := []proto.Message{proto.Clone(l), proto.Clone(rc), proto.Clone(c)}
			one, two, three := p.Listener(l, place), p.Routes(rc, place), p.Cluster(c, place)
			valid(t, one.Message, len(one.Hits) > 0 && !one.Removed)
			valid(t, two.Message, len(two.Hits) > 0)
			valid(t, three.Message, len(three.Hits) > 0 && !three.Removed)
			for i, now := range []proto.Message{l, rc, c} {
				if !proto.Equal(was[i], now) {
					t.Fatalf("the input was modified: %v", now)
				}
			}
		}
	})
}

func valid(t *testing.T, m proto.Message, changed bool) {
	t.Helper()
	if !changed {
		return
	}
	if err := checkMessage(m); err != nil {
		t.Errorf("the result is invalid: %v: %v", err, m)
	}
}

// TestLimits checks the features that operators can disable, and the bounds.
func TestLimits(t *testing.T) {
	t.Parallel()
	const (
		lua    = "- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: l, typed_config: {" + anyHTTP + "lua.v3.Lua}}}}"
		struc  = `- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: l, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}}`
		file   = "- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: l, typed_config: {" + anyHTTP + "lua.v3.Lua, default_source_code: {filename: /a}}}}}"
		regex  = "- {applyTo: HTTP_ROUTE, patch: {operation: INSERT_FIRST, value: {match: {safe_regex: {regex: '('}}, direct_response: {status: 200}}}}"
		istios = "- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: l, typed_config: {'@type': type.googleapis.com/stats.PluginConfig}}}}"
	)
	for name, tc := range map[string]struct {
		patch  string
		limits Limits
		valid  bool
	}{
		"lua": {lua, Limits{}, true}, "no lua": {lua, Limits{NoLua: true}, false}, "no lua in a struct": {struc, Limits{NoLua: true}, false},
		"file": {file, Limits{}, true}, "no file": {file, Limits{NoFiles: true}, false}, "regex": {regex, Limits{}, false}, "of Istio": {istios, Limits{}, false},
	} {
		spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches:\n"+tc.patch)
		f, problems := Parse(&model.Config{Spec: spec}, spec, tc.limits, nil)
		if (len(f.Patches) == 1) != tc.valid || (len(problems) == 0) != tc.valid {
			t.Errorf("%s: got %d patches, problems %v", name, len(f.Patches), problems)
		}
	}
}

// TestOrder checks the order of objects: priority, root namespace, age, name.
func TestOrder(t *testing.T) {
	t.Parallel()
	var filters []*Filter
	for i, text := range []string{"late", "default/b", "default/a", "istio-system/z", "early"} {
		spec := message(t, &networkingv1alpha3.EnvoyFilter{}, "configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: '"+text+"'}}}]")
		namespace, name := filepath.Split(text)
		spec.Priority = map[string]int32{"late": 5, "early": -5}[text]
		key := model.Key{Kind: model.EnvoyFilter, Namespace: filepath.Clean(namespace), Name: name}
		f, problems := Parse(&model.Config{Key: key, Spec: spec}, spec, Limits{}, nil)
		if len(problems) > 0 {
			t.Fatal(i, problems)
		}
		filters = append(filters, f)
	}
	var got string
	for _, p := range Of(filters, "istio-system", &model.Proxy{}).kind[cluster] {
		got += p.value.(*clusterv3.Cluster).GetAltStatName() + " "
	}
	if want := "early istio-system/z default/a default/b late "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestForProxy checks to which proxies a patch applies.
func TestForProxy(t *testing.T) {
	t.Parallel()
	for match, want := range map[string]bool{
		"{}": true, "{proxyVersion: '^1[.]18'}": true, "{proxyVersion: '^1[.]1[0-7]'}": false, "{metadata: {A: b}}": true, "{metadata: {A: c}}": false, "{metadata: {B: ''}}": false,
	} {
		f, _ := parse(t, "f", "- {applyTo: CLUSTER, match: {proxy: "+match+"}, patch: {operation: REMOVE}}")
		p := Of([]*Filter{f}, "", &model.Proxy{Agent: "1.18.2", Metadata: map[string]string{"A": "b"}})
		if got := p.Has(cluster); got != want || (p.Key != "") != want {
			t.Errorf("%s: Has() = %t, key %q", match, got, p.Key)
		}
	}
}
