// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/secrets"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// pluginHarness is a server with Secrets and the real generator.
type pluginHarness struct {
	*secretHarness
	mesh    *snapshot.Mesh
	objects map[string]*model.Config
}

// describePlugin returns "name=module" and, after a slash, the pull secret or its
// reference. A filter instead of a plugin is "name=allow" or "name=deny".
func describePlugin(t *testing.T, res *anypb.Any) string {
	t.Helper()
	config, plugin, script := &corev3.TypedExtensionConfig{}, &httpwasmv3.Wasm{}, &luav3.Lua{}
	if res.TypeUrl != xds.TypeExtension {
		return res.TypeUrl
	}
	if err := res.UnmarshalTo(config); err != nil {
		t.Fatal(err)
	}
	if filter := (&rbacv3.RBAC{}); config.GetTypedConfig().MessageIs(filter) {
		if err := config.GetTypedConfig().UnmarshalTo(filter); err != nil {
			t.Fatal(err)
		}
		if filter.GetRules() == nil {
			return config.GetName() + "=allow"
		}
		return config.GetName() + "=deny"
	}
	if config.GetTypedConfig().MessageIs(script) {
		if err := config.GetTypedConfig().UnmarshalTo(script); err != nil {
			t.Fatal(err)
		}
		return script.GetDefaultSourceCode().GetInlineString()
	}
	if err := config.GetTypedConfig().UnmarshalTo(plugin); err != nil {
		t.Fatal(err)
	}
	vm := plugin.GetConfig().GetVmConfig()
	word := config.GetName() + "=" + strings.TrimPrefix(vm.GetCode().GetRemote().GetHttpUri().GetUri(), "oci://")
	if secret, ok := vm.GetEnvironmentVariables().GetKeyValues()["ISTIO_META_WASM_IMAGE_PULL_SECRET"]; ok {
		word += "/" + secret
	}
	return word
}

// put writes a plugin of the namespace default; an empty module deletes it.
func (h *pluginHarness) put(name, module, secret string) {
	key := model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: name}
	if delete(h.objects, name); module != "" {
		h.objects[name] = &model.Config{Key: key, Source: name + ".yaml:1", Spec: &extensionsv1alpha1.WasmPlugin{Url: "oci://" + module, ImagePullSecret: secret}}
	}
	settings := meshconfig.Default()
	settings.ProxyHttpPort = 15080 // one listener
	h.mesh = snapshot.Build(h.mesh, snapshot.Input{Mesh: settings, List: func(kind model.Kind) (out []*model.Config) {
		for _, o := range h.objects {
			if o.Kind == kind {
				out = append(out, o)
			}
		}
		return out
	}}, model.Change{All: true})
	h.server.Push(h.mesh, model.NewChange(key))
}

// eachPlugin runs a test for both kinds of stream, over TLS.
func eachPlugin(t *testing.T, test func(t *testing.T, h *pluginHarness, p *peer)) {
	t.Helper()
	t.Parallel()
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startPlugins(t, true)
			test(t, h, h.subject(t, delta))
		})
	}
}

func startPlugins(t *testing.T, encrypted bool) *pluginHarness {
	t.Helper()
	h := &pluginHarness{secretHarness: &secretHarness{harness: &harness{}, logged: &journal{}}, objects: map[string]*model.Config{}}
	log := slog.New(slog.NewTextHandler(h.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	if h.secrets, err = credentials.NewTable(log, nil); err != nil {
		t.Fatal(err)
	}
	server, client := insecure.NewCredentials(), insecure.NewCredentials()
	if encrypted {
		root := mint(t, "root")
		s, c := root.issue(t, "server").tls(root)
		server, client = grpccredentials.NewTLS(s), grpccredentials.NewTLS(c)
	}
	cfg := Config{Generator: generate.New(generate.Config{}), Workers: 2, Secrets: secrets.Config{Source: h.secrets}, Logger: log}
	h.serve(t, cfg, gatewayCaller, server, client)
	h.put("none", "", "")
	return h
}

// subject connects as a sidecar of the caller.
func (h *pluginHarness) subject(t *testing.T, delta bool) *peer {
	t.Helper()
	p := h.connect(t, delta)
	p.node = shopNode(t, map[string]any{"SERVICE_ACCOUNT": "gateway"})
	p.describer = describePlugin
	return p
}

// problems returns the problems of objects that the server reports to users.
func (h *pluginHarness) problems() string {
	var out []string
	h.server.problems.each(0, func(p model.Problem, _ time.Time) { out = append(out, p.String()) })
	return strings.Join(out, "\n")
}

// agentNack rejects as an agent does, without a code.
func (p *peer) agentNack(typeURL, message string) {
	p.t.Helper()
	why := &rpcstatus.Status{Message: message}
	if p.delta {
		p.must(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: p.nonce[typeURL], ErrorDetail: why})
		return
	}
	p.must(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: p.names[typeURL], ResponseNonce: p.nonce[typeURL], ErrorDetail: why})
}

func TestPlugins(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		h.put("b", "r.example/b:v1", "")
		p.subscribe(xds.TypeExtension, "default.a")
		p.wantAck("ecds default.a=r.example/a:v1")
		p.more(xds.TypeExtension, "default.b")
		p.wantAck("ecds default.b=r.example/b:v1")
		h.put("b", "r.example/b:v2", "")
		p.wantAck("ecds default.b=r.example/b:v2")
		p.more(xds.TypeExtension, "default.c")
		p.quiet() // there is none, and the listener that names it waits
		h.put("c", "r.example/c:v1", "")
		p.wantAck("ecds default.c=r.example/c:v1")
		h.put("b", "", "")
		p.quiet() // what drains still runs it
		h.put("b", "r.example/b:v2", "")
		p.quiet() // which the proxy still has
		h.put("b", "r.example/b:v3", "")
		p.wantAck("ecds default.b=r.example/b:v3")
	})
}

func TestPluginRejected(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		h.put("b", "r.example/b:v1", "")
		p.subscribe(xds.TypeExtension, "default.a", "default.b")
		p.wantAck("ecds default.a=r.example/a:v1 default.b=r.example/b:v1")
		h.put("a", "r.example/a:bad", "")
		p.want("ecds default.a=r.example/a:bad")
		p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
		p.wantAck("ecds default.a=r.example/a:v1") // so that listeners can name it
		p.quiet()
		h.put("b", "r.example/b:v2", "") // which contains no news about a
		p.wantAck("ecds default.b=r.example/b:v2")
		h.put("a", "r.example/a:v2", "")
		p.wantAck("ecds default.a=r.example/a:v2")
		h.put("c", "r.example/c:bad", "")
		p.more(xds.TypeExtension, "default.c")
		p.want("ecds default.c=r.example/c:bad")
		p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.c")
		p.wantAck("ecds default.c=deny") // there never was a good one
		p.quiet()
		h.put("c", "r.example/c:v1", "")
		p.wantAck("ecds default.c=r.example/c:v1")
	})
}

// Envoy names the first plugin that it rejects, and may not have applied the others of the response.
// It answers each of several responses.
func TestPluginRejectedBesideOthers(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		h.put("a-b", "r.example/b:v1", "")
		p.subscribe(xds.TypeExtension, "default.a")
		p.want("ecds default.a=r.example/a:v1")
		unanswered := p.nonce[xds.TypeExtension]
		p.more(xds.TypeExtension, "default.a-b")
		p.want("ecds default.a-b=r.example/b:v1")
		last := p.nonce[xds.TypeExtension]
		p.nonce[xds.TypeExtension] = unanswered
		p.ack(xds.TypeExtension)
		p.nonce[xds.TypeExtension] = last
		p.ack(xds.TypeExtension)
		key := func(name string) model.Key {
			return model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: name}
		}
		h.objects["a"] = &model.Config{Key: key("a"), Spec: &extensionsv1alpha1.WasmPlugin{Url: "oci://r.example/a:v2"}}
		h.put("a-b", "r.example/b:bad", "")
		p.want("ecds default.a=r.example/a:v2 default.a-b=r.example/b:bad")
		p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a-b") // which contains the name of the other
		p.want("ecds default.a=r.example/a:v2 default.a-b=r.example/b:v1")
		p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
		p.wantAck("ecds default.a=r.example/a:v1 default.a-b=r.example/b:v1")
		p.quiet()
	})
}

// Envoy's message about a script contains the beginning of the script.
func TestScriptRejected(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		long := "long-" + strings.Repeat("x", 40)
		put := func(codes ...string) {
			for i, name := range []string{"a", long, long + "y"} {
				h.objects[name] = &model.Config{Key: model.Key{Kind: model.TrafficExtension, Namespace: "default", Name: name}, Spec: script(codes[i])}
			}
			h.put("m", "r.example/m:"+codes[3], "")
		}
		const a, b, c = "--[[default.a~lua]]", "--[[c44af98bbff1355a]]", "--[[acf08491c0717a73]]"
		said := func(mark, text string) string {
			return `script load error: [string "` + mark + `function..."]:1: ` + text
		}
		put("1", "1", "1", "1")
		p.subscribe(xds.TypeExtension, "default.a~lua", "default."+long+"~lua", "default."+long+"y~lua", "default.m")
		p.wantAck("ecds " + a + "1 " + b + "1 " + c + "1 default.m=r.example/m:1")
		put("2", "2", "2", "2")
		p.want("ecds " + a + "2 " + b + "2 " + c + "2 default.m=r.example/m:2")
		p.nack(xds.TypeExtension, said(b, "not default.m, and not "+a))
		p.want("ecds " + a + "2 " + b + "1 " + c + "2 default.m=r.example/m:2")
		p.nack(xds.TypeExtension, "script load error: default.m") // chosen by a script
		p.wantAck("ecds " + a + "1 " + b + "1 " + c + "1 default.m=r.example/m:2")
		p.quiet()
		put("3", "3", "3", "2")
		p.wantAck("ecds " + a + "3 " + b + "3 " + c + "3")
	})
}

// A plugin that never worked is replaced according to its failStrategy, also when the strategy
// changes, and remains rejected: Envoy would reject the listeners that refer to it.
func TestPluginReplaced(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		put := func(failStrategy extensionsv1alpha1.FailStrategy) {
			spec := &extensionsv1alpha1.WasmPlugin{Url: "oci://r.example/a:bad", FailStrategy: failStrategy}
			h.objects["a"] = &model.Config{Key: model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: "a"}, Spec: spec}
			h.put("none", "", "")
		}
		put(extensionsv1alpha1.FailStrategy_FAIL_OPEN)
		p.subscribe(xds.TypeExtension, "default.a")
		for range 2 {
			p.want("ecds default.a=r.example/a:bad")
			p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
			p.want("ecds default.a=allow")
			p.ack(xds.TypeExtension)
			h.stands(t, "FAIL_OPEN", "0 acknowledged, 0 behind, 1 rejected, REJECTED")
			put(extensionsv1alpha1.FailStrategy_FAIL_CLOSE)
			p.want("ecds default.a=r.example/a:bad")
			p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
			p.want("ecds default.a=deny")
			p.nack(xds.TypeExtension, "no such filter: default.a") // which changes nothing
			p.quiet()
			h.stands(t, "FAIL_CLOSE", "0 acknowledged, 0 behind, 1 rejected, REJECTED")
			put(extensionsv1alpha1.FailStrategy_FAIL_OPEN)
		}
	})
}

// An agent retries what it rejects with code 0, so the resource must not be replaced.
func TestPluginRejectedByAgent(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		p.subscribe(xds.TypeExtension, "default.a")
		p.wantAck("ecds default.a=r.example/a:v1")
		h.put("a", "r.example/a:v2", "")
		p.want("ecds default.a=r.example/a:v2")
		p.agentNack(xds.TypeExtension, "the module of default.a cannot be fetched")
		p.quiet()
		h.put("a", "r.example/a:v3", "")
		p.wantAck("ecds default.a=r.example/a:v3")
	})
}

// standing returns how far the one proxy is: with the newest snapshot, and with
// the type of plugins.
func (h *pluginHarness) standing() string {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	for st := range h.server.streams {
		p := NewDistribution([]ProxyStanding{first(st.acks.standing())}).Of(h.mesh.Sequence)
		return fmt.Sprintf("%d acknowledged, %d behind, %d rejected, %s", p.Acknowledged, p.Behind, p.Rejected, st.typeState(xds.TypeExtension).State())
	}
	return "nobody is connected"
}

func first[T, U any](t T, _ U) T { return t }

// stands waits until the proxy is that far.
func (h *pluginHarness) stands(t *testing.T, when, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = h.standing(); got == want {
			return
		}
	}
	t.Fatalf("%s: %s, want %s", when, got, want)
}

// A plugin counts as in force when the proxy has accepted it, not when it has
// accepted the version before again. A rejection is forgotten with its plugin, and
// does not concern the next plugin of the same name.
func TestPluginStanding(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		p.subscribe(xds.TypeExtension, "default.a")
		p.want("ecds default.a=r.example/a:v1")
		h.stands(t, "unanswered", "0 acknowledged, 1 behind, 0 rejected, STALE")
		p.ack(xds.TypeExtension)
		h.stands(t, "accepted", "1 acknowledged, 0 behind, 0 rejected, SYNCED")
		h.put("a", "r.example/a:bad", "")
		p.want("ecds default.a=r.example/a:bad")
		p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
		p.wantAck("ecds default.a=r.example/a:v1")
		p.quiet()
		h.stands(t, "with the version before", "0 acknowledged, 0 behind, 1 rejected, REJECTED")
		h.put("a", "", "")
		p.quiet()
		h.stands(t, "deleted", "1 acknowledged, 0 behind, 0 rejected, SYNCED")
		for range 2 {
			h.put("a", "r.example/a:other", "")
			p.want("ecds default.a=r.example/a:other")
			p.nack(xds.TypeExtension, "Unable to create Wasm plugin default.a")
			p.wantAck("ecds default.a=deny") // the version of the deleted one is not reused
			p.quiet()
			h.stands(t, "applied again", "0 acknowledged, 0 behind, 1 rejected, REJECTED")
			h.put("a", "r.example/a:v2", "")
			p.want("ecds default.a=r.example/a:v2")
			p.agentNack(xds.TypeExtension, "the module of default.a cannot be fetched")
			h.stands(t, "not fetched", "0 acknowledged, 0 behind, 1 rejected, REJECTED")
			p.ack(xds.TypeExtension)
			h.stands(t, "fetched", "1 acknowledged, 0 behind, 0 rejected, SYNCED")
			h.put("a", "", "")
			p.quiet()
		}
	})
}

// Listeners wait for the answer to plugins: one that names a broken plugin would
// be rejected.
func TestListenersWaitForPlugins(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "")
		p.subscribe(xds.TypeListener)
		p.ack(p.any())
		p.subscribe(xds.TypeExtension, "default.a")
		p.wantAck("ecds default.a=r.example/a:v1")
		h.put("b", "r.example/b:v1", "")
		p.ack(p.want("lds " + xds.TypeListener)) // nothing waits for it
		key := model.Key{Kind: model.WasmPlugin, Namespace: "default", Name: "c"}
		h.objects["c"] = &model.Config{Key: key, Spec: &extensionsv1alpha1.WasmPlugin{Url: "r.example/c:v1"}}
		h.put("a", "r.example/a:v2", "") // in one change
		p.want("ecds default.a=r.example/a:v2")
		p.quiet()
		p.ack(xds.TypeExtension)
		p.wantAck("lds " + xds.TypeListener)
	})
}

const dockerConfig = `{"auths":{"r.example":{"auth":"c2VjcmV0"}}}`

func dockerSecret(config string) map[string][]byte {
	return map[string][]byte{".dockerconfigjson": []byte(config)}
}

// A pull secret is filled in once it exists, changes with it, and is only in the response.
func TestPullSecrets(t *testing.T) {
	eachPlugin(t, func(t *testing.T, h *pluginHarness, p *peer) {
		h.put("a", "r.example/a:v1", "registry")
		h.put("plain", "r.example/plain:v1", "")
		p.subscribe(xds.TypeExtension, "default.a", "default.plain")
		p.wantAck("ecds default.plain=r.example/plain:v1") // the Secrets are still being read
		h.secrets.SetSynced()
		p.wantAck("ecds default.a=r.example/a:v1/null")
		if got := h.problems(); !strings.Contains(got, "a.yaml:1: WasmPlugin/default/a: spec.imagePullSecret: there is no Secret default/registry") {
			t.Errorf("the problems are %q", got)
		}
		h.secrets.Set("elsewhere", "registry", dockerSecret(dockerConfig))
		p.quiet()
		h.secrets.Set("default", "registry", dockerSecret(dockerConfig))
		p.wantAck("ecds default.a=r.example/a:v1/" + dockerConfig)
		if got := h.problems(); got != "" {
			t.Errorf("the problems are %q", got)
		}
		h.secrets.Set("default", "registry", dockerSecret(`{"auths":{}}`))
		p.wantAck(`ecds default.a=r.example/a:v1/{"auths":{}}`)
		h.secrets.Set("default", "registry", dockerSecret(`{"auths":`)) // the last good one stays
		p.quiet()
		h.put("a", "r.example/a:v2", "registry")
		p.wantAck(`ecds default.a=r.example/a:v2/{"auths":{}}`)
		h.secrets.Set("default", "registry", dockerSecret(dockerConfig))
		p.wantAck("ecds default.a=r.example/a:v2/" + dockerConfig)
		h.secrets.Delete("default", "registry")
		p.wantAck("ecds default.a=r.example/a:v2/null")
		h.secrets.Set("default", "registry", map[string][]byte{"ca.crt": mint(t, "root").chain})
		p.quiet()
		if got := h.problems(); !strings.Contains(got, "it contains no .dockerconfigjson, but ca.crt") {
			t.Errorf("the problems are %q", got)
		}
		if said := h.logged.String(); strings.Contains(said, "c2VjcmV0") {
			t.Errorf("log = %s, want no secret", said)
		}
	})
}

// Over plaintext there is no secret.
func TestPullSecretNeedsTLS(t *testing.T) {
	t.Parallel()
	h := startPlugins(t, false)
	h.secrets.SetSynced()
	h.secrets.Set("default", "registry", dockerSecret(dockerConfig))
	h.put("a", "r.example/a:v1", "registry")
	p := h.subject(t, false)
	p.subscribe(xds.TypeExtension, "default.a")
	p.wantAck("ecds default.a=r.example/a:v1/null")
	if said := h.logged.String(); !strings.Contains(said, "pull secrets are sent only over TLS") {
		t.Errorf("log = %s, want no secret", said)
	}
}

// No debug answer contains a pull secret.
func TestPullSecretIsNotShown(t *testing.T) {
	t.Parallel()
	h := startPlugins(t, true)
	h.secrets.SetSynced()
	h.secrets.Set("default", "registry", dockerSecret(dockerConfig))
	h.put("a", "r.example/a:v1", "registry")
	p := h.subject(t, false)
	p.subscribe(xds.TypeExtension, "default.a")
	p.wantAck("ecds default.a=r.example/a:v1/" + dockerConfig)
	wanted := map[string]string{"config_dump": "oci://r.example/a:v1", "ecdsz": "oci://r.example/a:v1", "syncz": "extensionconfig_acked"}
	for _, question := range []string{"config_dump", "syncz", "configz", "push_status", "edsz", "ecdsz"} {
		p.subscribe(debug.Type, question)
		for m := range p.got {
			r, ok := m.(*discoveryv3.DiscoveryResponse)
			if !ok || r.GetTypeUrl() != debug.Type {
				continue
			}
			var said []byte
			for _, res := range r.GetResources() {
				said = append(said, res.GetValue()...)
			}
			if bytes.Contains(said, []byte("c2VjcmV0")) {
				t.Errorf("the answer to %s contains a secret", question)
			}
			if want := wanted[question]; !bytes.Contains(said, []byte(want)) {
				t.Errorf("the answer to %s lacks %q: %s", question, want, said)
			}
			break
		}
	}
}
