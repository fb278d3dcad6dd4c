// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/types/known/anypb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/extension"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// inlinePlugin returns the configuration of an extension; a Wasm module is a local file, as the agent
// provides it.
func inlinePlugin(t testing.TB, r *xds.Resource) *anypb.Any {
	t.Helper()
	if config := unpack(t, r).(*corev3.TypedExtensionConfig).GetTypedConfig(); !config.MessageIs(&httpwasmv3.Wasm{}) {
		return config // an EnvoyFilter added it
	}
	plugin := pluginConfig(t, r)
	path := filepath.Join(t.TempDir(), "module.wasm")
	if err := os.WriteFile(path, wasmtest.Module("x-plugin", r.Name), 0o600); err != nil {
		t.Fatal(err)
	}
	plugin.GetVmConfig().Code = &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{
		Local: &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}},
	}}
	packed, err := anypb.New(&httpwasmv3.Wasm{Config: plugin})
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// pluginConfig decodes an ECDS resource.
func pluginConfig(t testing.TB, r *xds.Resource) *wasmv3.PluginConfig {
	t.Helper()
	plugin := &httpwasmv3.Wasm{}
	if err := unpack(t, r).(*corev3.TypedExtensionConfig).GetTypedConfig().UnmarshalTo(plugin); err != nil {
		t.Fatal(err)
	}
	return plugin.GetConfig()
}

// withPlugins adds plugins of the namespace default to a world.
func (w *world) withPlugins(specs map[string]*extensionsv1alpha1.WasmPlugin) {
	w.objects = slices.DeleteFunc(slices.Clone(w.objects), func(c *model.Config) bool { return c.Kind == model.WasmPlugin })
	change := model.Change{All: true}
	for name, spec := range specs {
		w.objects = append(w.objects, &model.Config{Key: model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: name}, Spec: spec})
	}
	w.build(change)
}

// TestPluginsTouchOnlyTheirProxies checks that a plugin affects only the listeners that it applies
// to, and that its settings affect only its configuration.
func TestPluginsTouchOnlyTheirProxies(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 5), New(Config{})
	mine, other := proxyAt("127.1.0.2"), proxyAt("127.1.0.2")
	other.Labels = map[string]string{"app": "svc-0002"}
	before := generateAll(g, w.mesh, mine)
	plugin := func(url string) *extensionsv1alpha1.WasmPlugin {
		return &extensionsv1alpha1.WasmPlugin{Url: url, Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "svc-0001"}}}
	}
	w.withPlugins(map[string]*extensionsv1alpha1.WasmPlugin{"p": plugin("oci://registry.example/p:v1")})
	with, without := generateAll(g, w.mesh, mine), generateAll(g, w.mesh, other)
	for i, typeURL := range xds.Types {
		if without[i] != before[i] {
			t.Errorf("%s: another *Set for a proxy without plugins", typeURL)
		}
		if same := with[i] == before[i]; same != (typeURL != xds.TypeListener) {
			t.Errorf("%s: the *Set of the proxy with the plugin is that of before: %t", typeURL, same)
		}
	}
	if set := g.Generate(w.mesh, other, xds.TypeExtension); set != g.empty {
		t.Errorf("a proxy without plugins gets %v", set)
	}
	first := g.Generate(w.mesh, mine, xds.TypeExtension)
	w.withPlugins(map[string]*extensionsv1alpha1.WasmPlugin{"p": plugin("oci://registry.example/p:v2")})
	after, second := generateAll(g, w.mesh, mine), g.Generate(w.mesh, mine, xds.TypeExtension)
	for i, typeURL := range xds.Types {
		if after[i] != with[i] {
			t.Errorf("%s: another *Set although only the module is another", typeURL)
		}
	}
	if difference(first, second) != 1 || first.Get("default.p") == nil {
		t.Errorf("%d configurations changed, want that of the plugin", difference(first, second))
	}
	if g.Generate(w.mesh, mine, xds.TypeExtension) != second {
		t.Error("the same again is another *Set")
	}
	w.withPlugins(nil)
	if gone := generateAll(g, w.mesh, mine); gone[slices.Index(xds.Types, xds.TypeListener)].Version != before[slices.Index(xds.Types, xds.TypeListener)].Version {
		t.Error("without the plugin the listeners are not those of before")
	}
}

func TestOldEnvoysFailOpen(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 1), New(Config{})
	w.withPlugins(map[string]*extensionsv1alpha1.WasmPlugin{"p": {Url: "oci://r.example/p:v1", FailStrategy: extensionsv1alpha1.FailStrategy_FAIL_OPEN}})
	tests := []struct {
		version string
		open    bool
		policy  wasmv3.FailurePolicy
	}{
		{"1.32.1", true, wasmv3.FailurePolicy_UNSPECIFIED},
		{"1.33.0", false, wasmv3.FailurePolicy_FAIL_OPEN},
		{"", false, wasmv3.FailurePolicy_FAIL_OPEN},
	}
	for _, tc := range tests {
		proxy := proxyAt("127.1.0.2")
		proxy.Envoy = tc.version
		config := pluginConfig(t, g.Generate(w.mesh, proxy, xds.TypeExtension).Get("default.p"))
		//lint:ignore SA1019 the field that old Envoys read
		if config.GetFailOpen() != tc.open || config.GetFailurePolicy() != tc.policy {
			t.Errorf("Envoy %q: got %v", tc.version, config)
		}
	}
}

func TestPullSecretIsFilledIn(t *testing.T) {
	t.Parallel()
	w, g := newWorld(t, 1), New(Config{})
	w.withPlugins(map[string]*extensionsv1alpha1.WasmPlugin{
		"secret": {Url: "oci://r.example/p:v1", ImagePullSecret: "other/registry"},
		"plain":  {Url: "oci://r.example/p:v1"},
	})
	set := g.Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeExtension)
	if name, err := extension.PullSecret(set.Get("default.plain")); name != "" || err != nil {
		t.Errorf("a plugin without a secret: %q, %v", name, err)
	}
	if _, err := extension.WithPullSecret(set.Get("default.plain"), []byte("{}")); err == nil {
		t.Error("a plugin without a secret got one")
	}
	res := set.Get("default.secret")
	// The namespace is always that of the object.
	if name, err := extension.PullSecret(res); name != "kubernetes://default/registry" || err != nil {
		t.Fatalf("%q, %v", name, err)
	}
	const env = "ISTIO_META_WASM_IMAGE_PULL_SECRET"
	for docker, want := range map[string]string{`{"auths":{}}`: `{"auths":{}}`, "": "null"} {
		full, err := extension.WithPullSecret(res, []byte(docker))
		if err != nil {
			t.Fatal(err)
		}
		if got := pluginConfig(t, full).GetVmConfig().GetEnvironmentVariables().GetKeyValues()[env]; got != want || full.Name != res.Name || full.Hash == res.Hash {
			t.Errorf("%q: got %q in %s", docker, got, full.Name)
		}
	}
	if got := pluginConfig(t, res).GetVmConfig().GetEnvironmentVariables().GetKeyValues()[env]; got != "kubernetes://default/registry" {
		t.Errorf("the resource that all share says %q", got)
	}
	if _, err := extension.PullSecret(&xds.Resource{Name: "broken", Any: []byte("\xff")}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a broken resource: %v", err)
	}
}

// FuzzPlugins builds listeners and configurations from random plugins. Each name in a listener
// must exist, two builds must be equal, and no reference may point to a secret of another
// namespace.
func FuzzPlugins(f *testing.F) {
	f.Add("oci://registry.example/p:v1", "registry", "REGION", int32(1), int32(2), uint32(8080), int32(1))
	f.Add("file:///p.wasm", "a/b", "ISTIO_META_WASM_IMAGE_PULL_SECRET", int32(0), int32(0), uint32(0), int32(2))
	f.Add("r.example/p\xff", "\xff", "\xff", int32(9), int32(9), uint32(1<<31), int32(9))
	settings := meshconfig.Default()
	settings.ProxyHttpPort = 15080
	f.Fuzz(func(t *testing.T, url, secret, env string, phase, mode int32, port uint32, fail int32) {
		spec := &extensionsv1alpha1.WasmPlugin{
			Url: url, ImagePullSecret: secret, Phase: extensionsv1alpha1.PluginPhase(phase), FailStrategy: extensionsv1alpha1.FailStrategy(fail),
			VmConfig: &extensionsv1alpha1.VmConfig{Env: []*extensionsv1alpha1.EnvVar{{Name: env, Value: "kubernetes://elsewhere/stolen"}}},
			Match:    []*extensionsv1alpha1.WasmPlugin_TrafficSelector{{Mode: typev1beta1.WorkloadMode(mode), Ports: []*typev1beta1.PortSelector{{Number: port}}}},
		}
		objects := []*model.Config{{Key: model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: "p"}, Spec: spec}}
		mesh := snapshot.Build(nil, inputOf(objects, settings), model.Change{All: true})
		proxy := proxyAt("127.1.0.2")
		g := New(Config{})
		listeners, plugins := g.Generate(mesh, proxy, xds.TypeListener), g.Generate(mesh, proxy, xds.TypeExtension)
		sameSet(t, xds.TypeExtension, New(Config{}).Generate(mesh, proxy, xds.TypeExtension), plugins)
		if len(listeners.Resources) != 1 {
			t.Fatalf("%d listeners: %v", len(listeners.Resources), listeners.Problems)
		}
		for _, chain := range unpack(t, listeners.Resources[0]).(*listenerv3.Listener).GetFilterChains() {
			hcm := &hcmv3.HttpConnectionManager{}
			if err := chain.GetFilters()[0].GetTypedConfig().UnmarshalTo(hcm); err != nil {
				t.Fatal(err)
			}
			for _, h := range hcm.GetHttpFilters() {
				if h.GetConfigDiscovery() != nil && plugins.Get(h.GetName()) == nil {
					t.Errorf("there is no configuration for %q", h.GetName())
				}
			}
		}
		for _, r := range plugins.Resources {
			if name, err := extension.PullSecret(r); err != nil || name != "" && !strings.HasPrefix(name, "kubernetes://default/") {
				t.Errorf("the pull secret is %q, %v", name, err)
			}
		}
	})
}
