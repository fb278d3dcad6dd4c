// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
)

// pluginOf returns a WasmPlugin. A smaller age means an older object.
func pluginOf(namespace, name string, age int, edit func(*extensionsv1alpha1.WasmPlugin)) *model.Config {
	spec := &extensionsv1alpha1.WasmPlugin{Url: "oci://registry.example/" + name + ":v1"}
	if edit != nil {
		edit(spec)
	}
	return &model.Config{
		Key:     model.Key{Kind: model.WasmPlugin, Namespace: namespace, Name: name},
		Created: time.Unix(int64(age), 0), Source: name + ".yaml:1", Spec: spec,
	}
}

func pluginsIn(objects ...*model.Config) Input {
	return Input{List: func(kind model.Kind) []*model.Config {
		if kind == model.WasmPlugin {
			return objects
		}
		return nil
	}}
}

func priority(n int32) func(*extensionsv1alpha1.WasmPlugin) {
	return func(s *extensionsv1alpha1.WasmPlugin) { s.Priority = wrapperspb.Int32(n) }
}

func selecting(key, value string) func(*extensionsv1alpha1.WasmPlugin) {
	return func(s *extensionsv1alpha1.WasmPlugin) {
		s.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{key: value}}
	}
}

func attached(group, kind, name string) func(*extensionsv1alpha1.WasmPlugin) {
	return func(s *extensionsv1alpha1.WasmPlugin) {
		s.TargetRefs = []*typev1beta1.PolicyTargetReference{{Group: group, Kind: kind, Name: name}}
	}
}

func TestWasmPluginsForWorkloads(t *testing.T) {
	t.Parallel()
	m := Build(nil, pluginsIn(
		pluginOf("shop", "young", 9, nil),
		pluginOf("shop", "old", 1, nil),
		pluginOf("shop", "first", 9, priority(10)),
		pluginOf("shop", "negative", 1, priority(-5)),
		pluginOf("istio-system", "mesh", 5, nil),
		pluginOf("istio-system", "mesh-first", 5, priority(10)),
		pluginOf("shop", "web", 1, selecting("app", "web")),
		pluginOf("istio-system", "mesh-web", 1, selecting("app", "web")),
		pluginOf("shop", "edge", 1, attached("gateway.networking.k8s.io", "Gateway", "edge")),
		pluginOf("istio-system", "foreign-edge", 1, attached("gateway.networking.k8s.io", "Gateway", "edge")),
		pluginOf("other", "other", 1, nil),
	), model.Change{All: true})
	edge := map[string]string{"gateway.networking.k8s.io/gateway-name": "edge"}
	tests := []struct {
		namespace string
		labels    map[string]string
		want      string
	}{
		{"shop", nil, "mesh-first first negative mesh old young"},
		{"shop", map[string]string{"app": "web"}, "mesh-first first negative mesh-web mesh old web young"},
		{"shop", edge, "mesh-first first negative mesh edge old young"},
		{"other", nil, "mesh-first mesh other"},
		{"empty", map[string]string{"app": "web"}, "mesh-first mesh-web mesh"},
		{"istio-system", nil, "mesh-first mesh"},
		{"istio-system", edge, "mesh-first foreign-edge mesh"},
	}
	for _, tc := range tests {
		var got []string
		for _, p := range m.WasmPlugins.For(tc.namespace, tc.labels) {
			got = append(got, p.Config.Name)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s %v: got %v, want %s", tc.namespace, tc.labels, got, tc.want)
		}
	}
	if len(m.Problems) != 0 {
		t.Errorf("problems: got %v, want none", m.Problems)
	}
}

func TestInvalidWasmPlugins(t *testing.T) {
	t.Parallel()
	url := func(text string) func(*extensionsv1alpha1.WasmPlugin) {
		return func(s *extensionsv1alpha1.WasmPlugin) { s.Url = text }
	}
	tests := []struct {
		name string
		edit func(*extensionsv1alpha1.WasmPlugin)
		want string // part of the problem; empty means none
		url  string // empty means that the plugin is omitted
	}{
		{"image", url("registry.example/p:v1"), "", "oci://registry.example/p:v1"},
		{"file", url("file:///plugins/p.wasm"), "", "file:///plugins/p.wasm"},
		{"http", url("https://example.com/p.wasm"), "", "https://example.com/p.wasm"},
		{"no url", url(""), "spec.url is missing", ""},
		{"a registry with a port", url("registry.example:5000/p"), `spec.url has the scheme "registry.example"`, ""},
		{"no file", url("file://"), "spec.url names no file", ""},
		{"no path", url("file:p.wasm"), "spec.url names no file", ""},
		{"no words of it", url("https://user:password\x7f@example.com"), "spec.url is not a URL", ""},
		{"network", func(s *extensionsv1alpha1.WasmPlugin) { s.Type = extensionsv1alpha1.PluginType_NETWORK }, "spec.type is NETWORK", ""},
		{"not UTF-8", func(s *extensionsv1alpha1.WasmPlugin) { s.PluginName = "\xff" }, "spec cannot be written", ""},
		{"no number", func(s *extensionsv1alpha1.WasmPlugin) {
			s.PluginConfig = &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(math.NaN())}}
		}, "spec.pluginConfig cannot be written as JSON", ""},
		{"a waypoint's", attached("", "Service", "web"), `spec.targetRefs[0]: Service "web" is not a Gateway`, "oci://registry.example/p:v1"},
	}
	for _, tc := range tests {
		m := Build(nil, pluginsIn(pluginOf("shop", "p", 1, tc.edit)), model.Change{All: true})
		p, got := m.WasmPlugins.Get("shop.p"), ""
		for _, problem := range m.Problems {
			got += problem.Reason
		}
		switch {
		case (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) || strings.Contains(got, "password"):
			t.Errorf("%s: problem: got %q, want %q", tc.name, got, tc.want)
		case (tc.url == "") != (p == nil) || p != nil && p.URL != tc.url:
			t.Errorf("%s: got %+v, want URL %q", tc.name, p, tc.url)
		}
	}
}

func TestUnchangedWasmPluginsStay(t *testing.T) {
	t.Parallel()
	objects := []*model.Config{pluginOf("shop", "a", 1, nil), pluginOf("shop", "b", 2, nil)}
	in := Input{List: func(kind model.Kind) []*model.Config {
		if kind == model.WasmPlugin {
			return objects
		}
		return nil
	}}
	first := Build(nil, in, model.Change{All: true})
	second := Build(first, in, model.Change{All: true})
	if first.WasmPlugins != second.WasmPlugins {
		t.Error("the index was rebuilt although nothing changed")
	}
	changed := *objects[0]
	spec := proto.CloneOf(objects[0].Spec.(*extensionsv1alpha1.WasmPlugin))
	spec.Url = "oci://registry.example/a:v2"
	changed.Spec = spec
	objects = []*model.Config{&changed, objects[1]}
	third := Build(second, in, model.NewChange(changed.Key))
	a, was := third.WasmPlugins.Get("shop.a"), second.WasmPlugins.Get("shop.a")
	if third.WasmPlugins.Get("shop.b") != second.WasmPlugins.Get("shop.b") || a == was {
		t.Error("an object other than the changed one was rebuilt")
	}
	if a.ListenerKey != was.ListenerKey || a.Version == was.Version {
		t.Errorf("after a change of the module: ListenerKey: got %q, before %q; Version: got %s, before %s", a.ListenerKey, was.ListenerKey, a.Version, was.Version)
	}
}

func TestTrafficExtensions(t *testing.T) {
	t.Parallel()
	lua := &extensionsv1alpha1.TrafficExtension{FilterConfig: &extensionsv1alpha1.TrafficExtension_Lua{Lua: &extensionsv1alpha1.LuaConfig{InlineCode: "a"}}}
	for name, test := range map[string]struct {
		spec    *extensionsv1alpha1.TrafficExtension
		noLua   bool
		problem string
	}{
		"shop.x~lua":  {spec: lua},
		"shop.x~wasm": {spec: &extensionsv1alpha1.TrafficExtension{FilterConfig: &extensionsv1alpha1.TrafficExtension_Wasm{Wasm: &extensionsv1alpha1.WasmConfig{Url: "a"}}}},
		"off":         {spec: lua, noLua: true, problem: "spec.lua: Lua is switched off by the operator of the control plane; the plugin is ignored"},
		"empty":       {spec: &extensionsv1alpha1.TrafficExtension{}, problem: "spec.lua.inlineCode is missing: write the code, or a module in spec.wasm; the plugin is ignored"},
		"no URL": {
			spec:    &extensionsv1alpha1.TrafficExtension{FilterConfig: &extensionsv1alpha1.TrafficExtension_Wasm{Wasm: &extensionsv1alpha1.WasmConfig{}}},
			problem: "spec.wasm.url is missing: write where the module is, such as oci://registry.example.com/plugin:v1; the plugin is ignored",
		},
	} {
		in := Input{Patches: patch.Limits{NoLua: test.noLua}, List: func(kind model.Kind) []*model.Config {
			if kind != model.TrafficExtension {
				return nil
			}
			return []*model.Config{{Key: model.Key{Kind: kind, Namespace: "shop", Name: "x"}, Spec: test.spec}}
		}}
		m := Build(nil, in, model.Change{All: true})
		var problems []string
		for _, p := range m.Problems {
			problems = append(problems, p.Reason)
		}
		plugin := m.WasmPlugins.For("shop", nil)
		if got := strings.Join(problems, "\n"); got != test.problem || (len(plugin) == 1) != (got == "") || len(plugin) == 1 && plugin[0].Name != name {
			t.Errorf("%s: %d plugins, problems: %s", name, len(plugin), got)
		}
	}
}
