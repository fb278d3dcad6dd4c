// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// TestEnvoyPlugins runs real modules in a real Envoy, from files and, through the agent's relay,
// from a web server. No request fails and no listener is rejected while
//
//   - a plugin is added, and its module changes, which changes no listener
//   - a module is invalid: the previous one stays in force, also in new listeners
//   - another plugin is added, and both are removed
//   - scripts and modules of TrafficExtensions change, and one of the scripts is invalid
func TestEnvoyPlugins(t *testing.T) {
	t.Parallel()
	wasmtest.NeedRuntime(t, envoytest.Binary(t))
	n := 0
	for _, agent := range []bool{false, true} {
		for _, api := range []string{"GRPC", "DELTA_GRPC"} {
			n++
			ip := fmt.Sprintf("127.77.59.%d", n)
			t.Run(fmt.Sprintf("agent=%t/%s", agent, api), func(t *testing.T) {
				t.Parallel()
				testEnvoyPlugins(t, ip, api, agent)
			})
		}
	}
}

func testEnvoyPlugins(t *testing.T, ip, api string, agent bool) {
	modules := servePlugins(t, ip, agent)
	plugin := func(file string) proto.Message { return &extensionsv1alpha1.WasmPlugin{Url: modules + file} }
	w := newWireMesh(t, ip)
	w.noTLS = true
	app := listenOn(t, ip)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = server.Listener.Close() // not the one that is wanted
	server.Listener = app
	server.Start()
	t.Cleanup(server.Close)
	w.putOne(model.ServiceEntry, "web", wireService("web.default.svc.cluster.local", "HTTP", 80, app.Addr().String()))
	control := w
	if agent {
		control = &wireMesh{address: relayFor(t, w, ip)}
	}
	e := runWireEnvoy(t, control, api, ip)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(ip, "15080")}),
	}}
	is := func(want string) {
		t.Helper()
		var got string
		for end := time.Now().Add(2 * time.Minute); got != want; {
			if got = askThrough(client); time.Now().After(end) {
				t.Fatalf("not within 2 minutes: %q, but %q", want, got)
			}
		}
	}
	is("200")
	stop := neverFails(t, client)
	w.putOne(model.WasmPlugin, "first", plugin("first-1"))
	is("200 x-first=1")
	listeners := e.counter("listener_manager.listener_modified")
	w.putOne(model.WasmPlugin, "first", plugin("first-2"))
	is("200 x-first=2")
	if now := e.counter("listener_manager.listener_modified"); now != listeners {
		t.Errorf("another module changes a listener: %s and %s", listeners, now)
	}
	w.putOne(model.WasmPlugin, "first", plugin("broken"))
	until(t, "the broken module is rejected", func() bool { return strings.Contains(w.logged.String(), xds.TypeExtension) })
	is("200 x-first=2")
	w.putOne(model.WasmPlugin, "third", plugin("second-1")) // a listener that names the broken one
	is("200 x-first=2 x-second=1")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.WasmPlugin, "third"): nil, wireKey(model.WasmPlugin, "second"): plugin("second-1"), wireKey(model.WasmPlugin, "first"): plugin("first-3"),
	})
	is("200 x-first=3 x-second=1")
	w.putOne(model.WasmPlugin, "first", nil)
	is("200 x-second=1")
	w.putOne(model.WasmPlugin, "second", nil)
	is("200")
	header := func(name, value string) proto.Message {
		return script(fmt.Sprintf("function envoy_on_response(h)\nh:headers():add(%q, %q)\nend", name, value))
	}
	module := func(file string) proto.Message {
		return &extensionsv1alpha1.TrafficExtension{FilterConfig: &extensionsv1alpha1.TrafficExtension_Wasm{Wasm: &extensionsv1alpha1.WasmConfig{Url: modules + file}}}
	}
	w.put(model.TrafficExtension, map[string]proto.Message{"first": header("x-first", "1"), "second": header("x-second", "1"), "third": module("third-1")})
	is("200 x-first=1 x-second=1 x-third=1")
	listeners = e.counter("listener_manager.listener_modified")
	w.put(model.TrafficExtension, map[string]proto.Message{"first": script("function ("), "second": header("x-second", "2"), "third": module("third-2")})
	is("200 x-first=1 x-second=2 x-third=2") // Envoy stops at the broken one, in an order of its own
	until(t, "only the broken script is rejected", func() bool { return w.rejectedPlugins() == "default.first~lua" })
	if now := e.counter("listener_manager.listener_modified"); now != listeners {
		t.Errorf("another script changes a listener: %s and %s", listeners, now)
	}
	w.put(model.TrafficExtension, map[string]proto.Message{"first": nil, "third": header("x-third", "3")}) // a script instead of a module
	is("200 x-second=2 x-third=3")
	stop()
	w.putOne(model.TrafficExtension, "first", script("error('chosen', 0)")) // has no accepted version
	is("403 x-second=2 x-third=3")                                          // scripts see the response of the filter before them
	w.putOne(model.TrafficExtension, "first", module("first-1"))
	is("200 x-first=1 x-second=2 x-third=3")
	for _, name := range []string{"listener_manager.lds.update_rejected", "listener_manager.listener_create_failure"} {
		if got := e.counter(name); got != "0" {
			t.Errorf("%s is %s", name, got)
		}
	}
}

// script returns a TrafficExtension that runs Lua.
func script(code string) *extensionsv1alpha1.TrafficExtension {
	return &extensionsv1alpha1.TrafficExtension{FilterConfig: &extensionsv1alpha1.TrafficExtension_Lua{Lua: &extensionsv1alpha1.LuaConfig{InlineCode: code}}}
}

// rejectedPlugins returns the names of the plugins that the one proxy rejected.
func (w *wireMesh) rejectedPlugins() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	var names []string
	for st := range w.server.streams {
		for _, r := range first(st.acks.standing()).Rejections {
			names = append(names, r.Names...)
		}
	}
	return strings.Join(names, " ")
}

// Invalid plugins that fail open let requests pass, however many there are; working plugins stay in
// force beside them.
func TestEnvoyBrokenPlugins(t *testing.T) {
	t.Parallel()
	wasmtest.NeedRuntime(t, envoytest.Binary(t))
	n := 0
	for _, agent := range []bool{false, true} {
		for _, api := range []string{"GRPC", "DELTA_GRPC"} {
			n++
			ip := fmt.Sprintf("127.77.61.%d", n)
			t.Run(fmt.Sprintf("agent=%t/%s", agent, api), func(t *testing.T) {
				t.Parallel()
				testEnvoyBrokenPlugins(t, ip, api, agent)
			})
		}
	}
}

func testEnvoyBrokenPlugins(t *testing.T, ip, api string, agent bool) {
	modules := servePlugins(t, ip, agent)
	w := newWireMesh(t, ip)
	w.noTLS = true
	app := listenOn(t, ip)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = server.Listener.Close() // not the one that is wanted
	server.Listener = app
	server.Start()
	t.Cleanup(server.Close)
	w.putOne(model.ServiceEntry, "web", wireService("web.default.svc.cluster.local", "HTTP", 80, app.Addr().String()))
	control := w
	if agent {
		control = &wireMesh{address: relayFor(t, w, ip)}
	}
	runWireEnvoy(t, control, api, ip)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(ip, "15080")}),
	}}
	is := func(want string) {
		t.Helper()
		until(t, "a request is answered with "+want, func() bool { return askThrough(client) == want })
	}
	is("200")
	stop := neverFails(t, client)
	all := map[model.Key]proto.Message{}
	for i := range 40 {
		all[wireKey(model.WasmPlugin, fmt.Sprintf("broken-%d", i))] = &extensionsv1alpha1.WasmPlugin{
			Url: fmt.Sprintf("%sbroken?%d", modules, i), FailStrategy: extensionsv1alpha1.FailStrategy_FAIL_OPEN,
		}
	}
	if !agent { // a file has no query
		for _, plugin := range all {
			plugin.(*extensionsv1alpha1.WasmPlugin).Url = modules + "broken"
		}
	}
	all[wireKey(model.WasmPlugin, "works")] = &extensionsv1alpha1.WasmPlugin{
		Url: modules + "first-1", FailStrategy: extensionsv1alpha1.FailStrategy_FAIL_OPEN,
	}
	w.putAll(all)
	is("200 x-first=1")
	stop()
}

// servePlugins returns the URL before the names of modules.
func servePlugins(t *testing.T, ip string, overHTTP bool) string {
	t.Helper()
	dir := t.TempDir()
	for name, module := range map[string][]byte{
		"first-1": wasmtest.Module("x-first", "1"), "first-2": wasmtest.Module("x-first", "2"), "first-3": wasmtest.Module("x-first", "3"),
		"second-1": wasmtest.Module("x-second", "1"), "third-1": wasmtest.Module("x-third", "1"), "third-2": wasmtest.Module("x-third", "2"), "broken": []byte("\x00asm\x01\x00\x00\x00\xff\xff"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), module, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !overHTTP {
		return "file://" + dir + "/"
	}
	s := httptest.NewUnstartedServer(http.FileServer(http.Dir(dir)))
	_ = s.Listener.Close() // not the one that is wanted
	s.Listener = listenOn(t, ip)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL + "/"
}

// relayFor runs an agent's relay between an Envoy and a mesh, and returns its address.
func relayFor(t *testing.T, w *wireMesh, ip string) string {
	t.Helper()
	cache, err := wasm.New(wasm.Config{Dir: t.TempDir(), AllowedHosts: []string{ip}})
	if err != nil {
		t.Fatal(err)
	}
	l := listenOn(t, ip)
	relay, err := xdsproxy.New(xdsproxy.Config{
		Listener: l, Upstream: xdsproxy.UpstreamConfig{Address: w.address},
		Rewriters: map[string]xdsproxy.Rewriter{xds.TypeExtension: func(ctx context.Context, response []byte, delta bool) ([]byte, string) {
			r := cache.RewriteResponse(ctx, response, delta)
			return r.Frame, r.Reason()
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []func(context.Context) error{relay.Run, cache.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return l.Addr().String()
}

// askThrough sends a request through a sidecar, and returns the headers of the modules.
func askThrough(client *http.Client) string {
	resp, err := client.Get("http://web.default.svc.cluster.local/") //nolint:noctx // the client has a limit
	if err != nil {
		return err.Error()
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil {
		return err.Error()
	}
	got := fmt.Sprint(resp.StatusCode)
	for _, h := range []string{"x-first", "x-second", "x-third"} {
		if v := resp.Header.Get(h); v != "" {
			got += " " + h + "=" + v
		}
	}
	return got
}

// neverFails sends requests until stop; each must succeed.
func neverFails(t *testing.T, client *http.Client) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	sent := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			if got := askThrough(client); !strings.HasPrefix(got, "200") {
				t.Errorf("request %d: %s", sent, got)
				return
			}
			sent++
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if sent == 0 {
			t.Error("no request was sent")
		}
	})
	t.Cleanup(stop)
	return stop
}

// counter returns a counter of Envoy.
func (e *wireEnvoy) counter(name string) string {
	_, value, _ := strings.Cut(strings.TrimSpace(e.get("/stats?filter=^"+name+"$")), ": ")
	return value
}
