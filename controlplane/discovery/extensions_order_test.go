// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// TestEnvoyPluginOrder has several plugins on one workload. Each adds its name to the responses, in
// the reverse order of the filters: of the phases, and of the priorities within a phase. Plugins with
// a match apply only to its side and ports. A plugin whose module is missing or invalid lets
// requests pass or fail as its failStrategy says, only where it matches, until it has another URL.
func TestEnvoyPluginOrder(t *testing.T) {
	t.Parallel()
	wasmtest.NeedRuntime(t, envoytest.Binary(t))
	for i, api := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(api, func(t *testing.T) {
			t.Parallel()
			testEnvoyPluginOrder(t, fmt.Sprintf("127.77.59.%d", 21+i), api)
		})
	}
}

func testEnvoyPluginOrder(t *testing.T, ip, api string) {
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(app.Close)
	w := newWireMesh(t, ip)
	w.noTLS = true
	inbound := freePort(t, ip)
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "web"): wireService("web.default.svc.cluster.local", "HTTP", 80, app.Listener.Addr().String()),
		wireKey(model.Sidecar, "in"): &networkingv1alpha3.Sidecar{Ingress: []*networkingv1alpha3.IstioIngressListener{{
			Port: &networkingv1alpha3.SidecarPort{Number: parsePort(inbound), Protocol: "HTTP", Name: "http"}, DefaultEndpoint: app.Listener.Addr().String(),
		}}},
		wireKey(model.PeerAuthentication, "plain"): &securityv1beta1.PeerAuthentication{
			Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_DISABLE},
		},
	})
	dir := t.TempDir()
	plugin := func(name string, phase extensionsv1alpha1.PluginPhase, priority int32, match ...*extensionsv1alpha1.WasmPlugin_TrafficSelector) *extensionsv1alpha1.WasmPlugin {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, wasmtest.Module("x-order", name), 0o600); err != nil {
			t.Fatal(err)
		}
		return &extensionsv1alpha1.WasmPlugin{Url: "file://" + path, Phase: phase, Priority: wrapperspb.Int32(priority), Match: match}
	}
	const authn, authz, stats, last = extensionsv1alpha1.PluginPhase_AUTHN, extensionsv1alpha1.PluginPhase_AUTHZ, extensionsv1alpha1.PluginPhase_STATS, extensionsv1alpha1.PluginPhase_UNSPECIFIED_PHASE
	at := func(mode typev1beta1.WorkloadMode, port uint32) *extensionsv1alpha1.WasmPlugin_TrafficSelector {
		m := &extensionsv1alpha1.WasmPlugin_TrafficSelector{Mode: mode}
		if port != 0 {
			m.Ports = []*typev1beta1.PortSelector{{Number: port}}
		}
		return m
	}
	client, server := typev1beta1.WorkloadMode_CLIENT, typev1beta1.WorkloadMode_SERVER
	// The names sort differently from the order of the filters.
	all := map[string]proto.Message{}
	for _, p := range []*extensionsv1alpha1.WasmPlugin{
		plugin("a-stats", stats, 1), plugin("b-last", last, 99), plugin("c-authz", authz, 7), plugin("d-low", authn, -1), plugin("e-high", authn, 10),
		plugin("f-client", authz, 5, at(client, 0)), plugin("g-server", authz, 5, at(server, parsePort(inbound))),
		plugin("h-elsewhere", authz, 5, at(server, 1), at(client, 2)),
	} {
		all[filepath.Base(p.Url)] = p
	}
	w.put(model.WasmPlugin, all)
	extension := func(name string, priority int32, match ...*extensionsv1alpha1.TrafficSelector) *extensionsv1alpha1.TrafficExtension {
		x := script(fmt.Sprintf("function envoy_on_response(h) h:headers():add('x-order', %q) end", name))
		x.Phase, x.Priority, x.Match = extensionsv1alpha1.TrafficExtension_AUTHZ, wrapperspb.Int32(priority), match
		return x
	}
	module := extension("l-module", 4)
	module.FilterConfig = &extensionsv1alpha1.TrafficExtension_Wasm{Wasm: &extensionsv1alpha1.WasmConfig{Url: plugin("l-module", authz, 0).Url}}
	serverOnly := &extensionsv1alpha1.TrafficSelector{Mode: server}
	w.put(model.TrafficExtension, map[string]proto.Message{"i": extension("i-script", 6), "k": extension("k-server", 3, serverOnly), "l": module})
	runWireEnvoy(t, w, api, ip)
	through := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(ip, "15080")}),
	}}
	into := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	is := func(out, in string) {
		t.Helper()
		got := [2]string{}
		for end := time.Now().Add(2 * time.Minute); got != [2]string{out, in}; time.Sleep(10 * time.Millisecond) {
			got = [2]string{orderOf(through, "http://web.default.svc.cluster.local/"), orderOf(into, "http://"+net.JoinHostPort(ip, inbound)+"/")}
			if time.Now().After(end) {
				t.Fatalf("not within 2 minutes: %q and %q, but %q", out, in, got)
			}
		}
	}
	is("200 b-last a-stats l-module f-client i-script c-authz d-low e-high", "200 b-last a-stats k-server l-module g-server i-script c-authz d-low e-high")
	w.put(model.TrafficExtension, map[string]proto.Message{"i": nil, "k": nil, "l": extension("l-script", 8)})
	is("200 b-last a-stats f-client c-authz l-script d-low e-high", "200 b-last a-stats g-server c-authz l-script d-low e-high")
	w.put(model.TrafficExtension, map[string]proto.Message{"l": nil})
	const out, in = "200 b-last a-stats f-client c-authz d-low e-high", "200 b-last a-stats g-server c-authz d-low e-high"
	is(out, in)
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("\x00asm\x01\x00\x00\x00\xff\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{garbage, filepath.Join(dir, "missing")} {
		bad := func(strategy extensionsv1alpha1.FailStrategy) *extensionsv1alpha1.WasmPlugin {
			return &extensionsv1alpha1.WasmPlugin{Url: "file://" + module, Phase: stats, FailStrategy: strategy, Match: []*extensionsv1alpha1.WasmPlugin_TrafficSelector{at(server, 0)}}
		}
		w.putOne(model.WasmPlugin, "bad", bad(extensionsv1alpha1.FailStrategy_FAIL_CLOSE))
		is(out, "403 a-stats g-server c-authz d-low e-high")
		w.putOne(model.WasmPlugin, "bad", nil)
		is(out, in)
		w.putOne(model.WasmPlugin, "bad", bad(extensionsv1alpha1.FailStrategy_FAIL_OPEN))
		w.putOne(model.WasmPlugin, "mark", plugin("mark", last, 0)) // in force after the plugin before it
		is(strings.Replace(out, "200 ", "200 mark ", 1), strings.Replace(in, "200 ", "200 mark ", 1))
		w.put(model.WasmPlugin, map[string]proto.Message{"mark": nil, "bad": plugin("good", stats, 0, at(server, 0))})
		is(out, strings.Replace(in, "a-stats", "good a-stats", 1))
		w.putOne(model.WasmPlugin, "bad", nil)
		is(out, in)
	}
}

// orderOf sends a request, and returns the status and the names that plugins added to the response.
func orderOf(client *http.Client, target string) string {
	resp, err := client.Get(target) // the client has a limit
	if err != nil {
		return err.Error()
	}
	_ = resp.Body.Close() // only the header matters
	return strings.Join(append([]string{fmt.Sprint(resp.StatusCode)}, resp.Header.Values("x-order")...), " ")
}
