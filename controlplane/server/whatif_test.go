// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// received are the resources that a delta client received: by type, "+" or "-" and the name, with
// the bytes.
type received map[string]map[string]string

// recorder records what a generator returns for the only proxy, by type.
type recorder struct {
	debug.Generator
	mu   sync.Mutex
	sets map[string]*xds.Set
}

func (r *recorder) Generate(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) *xds.Set {
	set := r.Generator.Generate(mesh, proxy, typeURL)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets[typeURL] = set
	return set
}

// record lets what-if use a generator that a test can look into.
func (s *Server) record(cfg generate.Config) *recorder {
	r := &recorder{sets: map[string]*xds.Set{}}
	s.discovery.Debug(debug.Config{Objects: s.objects.store, Propose: s.propose, Preview: func() debug.Generator {
		r.Generator = generate.New(cfg)
		return r
	}})
	return r
}

// deltaProxy returns the responses of a delta stream, one type each. It subscribes to the endpoints
// of all clusters, to the given routes, and to an extension.
func deltaProxy(t *testing.T, s *Server, routes []string) <-chan received {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, s.ports.listeners.plaintext.Addr().String())).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "HTTP_PROXY_PORT": "15007", "NETWORK": "near"})
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		if err := stream.Send(r); err != nil && err != io.EOF && t.Context().Err() == nil { // EOF: the server has ended the stream
			t.Error(err)
		}
	}
	node := &corev3.Node{Id: "sidecar~127.77.62.111~client.shop~shop.svc.cluster.local", Metadata: meta}
	send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.TypeCluster})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeListener})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeRoute, ResourceNamesSubscribe: routes})
	send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeExtension, ResourceNamesSubscribe: []string{"shop.count", "shop.count~lua"}})
	out, subscribed := make(chan received), map[string]bool{}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return // the stream ends with the test
			}
			got, added := received{r.GetTypeUrl(): {}}, []string(nil)
			for _, item := range r.GetResources() {
				raw, err := proto.Marshal(item.GetResource())
				if err != nil {
					t.Error(err)
				}
				got[r.GetTypeUrl()]["+"+item.GetName()] = string(raw)
				c := &clusterv3.Cluster{}
				if r.GetTypeUrl() == xds.TypeCluster && item.GetResource().UnmarshalTo(c) == nil && c.GetType() == clusterv3.Cluster_EDS {
					if !subscribed[item.GetName()] {
						added = append(added, item.GetName())
					}
					subscribed[item.GetName()] = true
				}
			}
			for _, name := range r.GetRemovedResources() {
				got[r.GetTypeUrl()]["-"+name] = ""
			}
			send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
			if added != nil {
				send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.TypeEndpoint, ResourceNamesSubscribe: added})
			}
			select {
			case out <- got:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return out
}

// whatIf requests the effect of a change on the only proxy.
func (s *Server) whatIf(t *testing.T, fields url.Values) (code int, text string, answer report.WhatIf) {
	t.Helper()
	fields.Set("proxyID", "client.shop")
	resp, err := http.PostForm("http://"+s.ports.listeners.http.Addr().String()+"/debug/whatif", fields)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, string(body), answer
}

// prediction is what a delta client will receive according to a report, by type: the names as in
// received, and the sizes.
type prediction struct {
	names received
	sizes map[string]int
}

func predictionOf(a report.Affected) prediction {
	p := prediction{received{}, map[string]int{}}
	for _, d := range a.Types {
		typeURL := typesByName[d.Type]
		p.sizes[typeURL], p.names[typeURL] = d.Bytes, map[string]string{}
		for _, name := range d.Names {
			if changed, ok := strings.CutPrefix(name, "~"); ok {
				name = "+" + changed
			}
			if typeURL != xds.TypeEndpoint || name[0] == '+' { // endpoints are removed with their cluster
				p.names[typeURL][name] = ""
			}
		}
	}
	return p
}

// arrived reports whether a client has received everything that was predicted.
func (p prediction) arrived(all received) bool {
	for typeURL, names := range p.names {
		for name := range names {
			if _, ok := all[typeURL][name]; !ok {
				return false
			}
		}
		size := 0 // endpoints that do not change, but whose clusters do, have no names
		for _, raw := range all[typeURL] {
			size += len(raw)
		}
		if size < p.sizes[typeURL] {
			return false
		}
	}
	return true
}

// compare reports resources that a client received although they were not predicted, or whose bytes
// differ from those of the prediction.
func (p prediction) compare(t *testing.T, what string, all received, by *recorder) {
	t.Helper()
	for typeURL, names := range all {
		size := 0
		for name, raw := range names {
			if size += len(raw); typeURL == xds.TypeEndpoint && name[0] == '-' {
				continue // see predictionOf
			}
			by.mu.Lock()
			set := by.sets[typeURL]
			by.mu.Unlock()
			if r := set.Get(name[1:]); (r == nil) != (name[0] == '-') || r != nil && string(r.Any) != raw {
				t.Errorf("%s: the proxy received %s %s with other bytes than predicted", what, typeURL, name)
			}
			_, repeated := p.names[xds.TypeCluster][name]
			if _, ok := p.names[typeURL][name]; !ok && !repeated {
				t.Errorf("%s: the proxy received %s %s, want %v", what, typeURL, name, slices.Sorted(maps.Keys(p.names[typeURL])))
			}
		}
		if size != p.sizes[typeURL] {
			t.Errorf("%s: the proxy received %d bytes of %s, want %d", what, size, typeURL, p.sizes[typeURL])
		}
	}
}

// clientService is the service of the proxy.
const clientService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: client, namespace: shop}
spec:
  hosts: [client.shop.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, targetPort: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.62.111}]
`

// clientSidecar is the Sidecar with the inbound port of the proxy.
const clientSidecar = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, defaultEndpoint: 127.0.0.1:8081}]
  egress: [{hosts: ["*/*"]}]
`

// security returns an object of the security API.
func security(kind, spec string) string {
	return "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: a, namespace: shop}\nspec: " + spec + "\n"
}

const webRule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}, subsets: [{name: v2, labels: {version: v2}}]}
`

const httpRoute = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: other, namespace: shop}\n" +
	"spec: {parentRefs: [{group: '', kind: Service, name: other}], rules: [{timeouts: {request: 3s}, backendRefs: [{name: web, port: 80}]}]}\n"

// whatIfSteps are changes of objects, each in force when the next one is proposed. One without a text
// deletes the file.
var whatIfSteps = []struct {
	name, text, problem string
	drained             bool
	status              string // conditions of the proposed object
}{
	{name: "2.yaml", text: string(machineFile("22"))},
	{name: "rule.yaml", text: webRule, problem: "no endpoint"},
	{name: "route.yaml", text: "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web], http: [{route: [{destination: {host: web, subset: v3}}]}]}\n", problem: "v3"},
	{name: "rule.yaml", text: strings.Replace(webRule, "v2}}]", "v2}}, {name: v3, labels: {version: v3}}]", 1), problem: "no endpoint"},
	{name: "filter.yaml", text: `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: drain, namespace: shop}
spec:
  configPatches:
  - applyTo: LISTENER
    match: {context: SIDECAR_OUTBOUND}
    patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 4711}}
`, drained: true},
	{name: "deny.yaml", text: security("AuthorizationPolicy", "{action: DENY, rules: [{to: [{operation: {paths: [/items]}}]}]}"), problem: "attributes of HTTP only"},
	{name: "strict.yaml", text: security("PeerAuthentication", "{mtls: {mode: STRICT}}"), drained: true},
	{name: "tokens.yaml", text: security("RequestAuthentication", `{jwtRules: [{issuer: tests, jwks: '{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}'}]}`)},
	{name: "spans.yaml", text: "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: a, namespace: shop}\nspec: {accessLogging: [{providers: [{name: envoy}]}]}\n", drained: true},
	{name: "count.yaml", text: "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: count, namespace: shop}\nspec: {url: 'https://modules.test/a.wasm'}\n"},
	{name: "script.yaml", text: "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\nmetadata: {name: count, namespace: shop}\nspec: {lua: {inlineCode: 'while true do end'}}\n"},
	{name: "other.yaml", text: strings.ReplaceAll(strings.ReplaceAll(shopService, "web", "other"), "number: 80,", "number: 81,")},
	{name: "converted.yaml", text: httpRoute, status: "Service other Accepted True Accepted, Service other ResolvedRefs True ResolvedRefs"},
	{name: "converted.yaml", text: strings.Replace(httpRoute, "name: web", "name: nobody", 1), status: "Service other Accepted True Accepted, Service other ResolvedRefs False BackendNotFound"},
	{name: "secured.yaml", text: `apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: web, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: other}], validation: {hostname: other.test, wellKnownCACertificates: System}}
`},
	{name: "converted.yaml"},
	{name: "sidecar.yaml", text: strings.Replace(clientSidecar, "*/*", "./web.shop.svc.cluster.local", 1)},
	{name: "sidecar.yaml", drained: true},
	{name: "route.yaml"},
	{name: "rule.yaml"},
}

// TestWhatIf compares predictions with what a proxy receives after the change.
func TestWhatIf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "1.yaml"): machineFile("21"), filepath.Join(dir, "client.yaml"): []byte(clientService), filepath.Join(dir, "sidecar.yaml"): []byte(clientSidecar)})
	var settings generate.Config
	s := serve(t, func(c *Config) {
		c.ConfigDir, c.Listen.Plaintext, c.Status.On = dir, testHost+":0", false
		settings = c.Generate
	})
	waitFor(t, "the control plane is ready", s.discovery.Ready)
	by := s.record(settings)
	responses := deltaProxy(t, s, []string{"http_proxy"})
	all := received{}
	receive := func() {
		select {
		case r := <-responses:
			for typeURL, names := range r {
				if all[typeURL] == nil {
					all[typeURL] = map[string]string{}
				}
				maps.Copy(all[typeURL], names)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("timeout waiting for the predicted resources; received: %v", all)
		}
	}
	for len(all[xds.TypeRoute]) == 0 || len(all[xds.TypeEndpoint]) == 0 {
		receive()
	}
	for _, step := range whatIfSteps {
		file, fields := filepath.Join(dir, step.name), url.Values{"objects": {step.text + "---\napiVersion: v1\nkind: Service\nmetadata: {name: other}\n"}, "source": {step.name}}
		if step.text == "" {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			fields.Set("objects", string(text))
			fields.Set("delete", "true")
		}
		code, text, got := s.whatIf(t, fields)
		if code != http.StatusOK || len(got.Proxies) != 1 || got.All != 1 || len(got.Objects) != 1 || (got.Skipped == 1) != (step.text != "") {
			t.Fatalf("%s: got %d %.600s", step.name, code, text)
		}
		if problems := len(got.Problems); problems > 1 || (problems == 1) != (step.problem != "") || problems == 1 && !strings.Contains(got.Problems[0].Reason, step.problem) {
			t.Errorf("%s: problems: got %v, want %q", step.name, got.Problems, step.problem)
		}
		if drained := len(got.Proxies[0].Drained) > 0; drained != step.drained {
			t.Errorf("%s: drained: got %v", step.name, got.Proxies[0])
		}
		var conditions []string
		for _, s := range got.Statuses {
			for _, c := range s.Conditions {
				conditions = append(conditions, c.At+" "+c.Type+" "+c.Status+" "+c.Reason)
			}
		}
		if status := strings.Join(conditions, ", "); status != step.status {
			t.Errorf("%s: conditions: got %s, want %s", step.name, status, step.status)
		}
		want := predictionOf(got.Proxies[0])
		clear(all)
		if step.text == "" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		} else {
			write(t, map[string][]byte{file: []byte(step.text)})
		}
		for !want.arrived(all) {
			receive()
		}
		want.compare(t, step.name, all, by)
		validateStatic(t, got.Static)
	}
	s.refusedChanges(t, webRule)
}

// refusedChanges checks that changes that cannot be made are rejected.
func (s *Server) refusedChanges(t *testing.T, absent string) {
	t.Helper()
	for want, fields := range map[string]url.Values{
		"no objects are proposed":    {},
		"spec.hosts":                 {"objects": {strings.Replace(shopService, "  hosts: [web.shop.svc.cluster.local]\n", "", 1)}, "source": {"a.yaml"}},
		"change nothing for proxies": {"objects": {"apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: a, namespace: shop}\nspec: {template: {}}\n"}},
		"so it cannot be deleted":    {"objects": {absent}, "delete": {"true"}},
	} {
		if code, text, _ := s.whatIf(t, fields); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("got %d %s, want 400 with %q", code, text, want)
		}
	}
}

var typesByName = map[string]string{"ecds": xds.TypeExtension, "cds": xds.TypeCluster, "eds": xds.TypeEndpoint, "lds": xds.TypeListener, "rds": xds.TypeRoute}

// validateStatic reports an error unless Envoy accepts a configuration.
func validateStatic(t *testing.T, static []byte) {
	t.Helper()
	envoy := envoytest.Binary(t)
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, static, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "-c", file, "--concurrency", "1", "-l", "error").CombinedOutput(); err != nil {
		t.Errorf("Envoy rejects the configuration: %v\n%s", err, out)
	}
}
