// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// authorizers are a real external authorizer of each kind, and a server that closes every
// connection. The header X-Do of a request says what an authorizer does: "deny", "hang" until the
// caller gives up, "fail"; otherwise it allows the request.
type authorizers struct {
	authv3.UnimplementedAuthorizationServer
	web, grpc, dead string // ports
	// faulty is true for an Envoy that ignores statusOnError and headersToDownstreamOnDeny of
	// authorizers over HTTP.
	faulty bool

	mu sync.Mutex
	// asked are the authorizers that were asked about the header X-Id of a request, or about
	// connections.
	asked map[string][]string
}

func newAuthorizers(t *testing.T) *authorizers {
	t.Helper()
	a := &authorizers{asked: map[string][]string{}}
	web := httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(web.Close)
	a.web = portOf(t, web.Listener.Addr())
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	l := listen()
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, a)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	a.grpc = portOf(t, l.Addr())
	dead := listen()
	go func() {
		for {
			conn, err := dead.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	a.dead = portOf(t, dead.Addr())
	return a
}

func (a *authorizers) record(id, kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[id] = append(a.asked[id], kind)
}

// askedAbout returns the authorizers that were asked about a request.
func (a *authorizers) askedAbout(id string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(a.asked[id]))
}

// serve is the authorizer over HTTP.
func (a *authorizers) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.record(r.Header.Get("X-Id"), "web")
	h := w.Header()
	switch r.Header.Get("X-Do") {
	case "deny":
		h.Set("X-Reason", "not you")
		h.Set("X-Internal", "secret")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "denied by the authorizer")
	case "hang":
		<-r.Context().Done()
	case "fail":
		w.WriteHeader(http.StatusInternalServerError)
	default:
		h.Set("X-Web-User", "jane")
		h.Set("X-Web-Path", r.URL.Path)
		h.Set("X-Web-Body", string(body))
		h.Set("X-Web-From", r.Header.Get("X-From"))
		h.Set("X-Web-Hidden", r.Header.Get("X-Hidden"))
		h.Set("X-Web-Listed", r.Header.Get("X-List-1")+r.Header.Get("One-Token"))
		h.Set("X-Internal", "secret")
		h.Set("X-Answer", "seen")
	}
}

// Check is the authorizer over gRPC.
func (a *authorizers) Check(ctx context.Context, in *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	request := in.GetAttributes().GetRequest().GetHttp()
	id := request.GetHeaders()["x-id"]
	if request.GetMethod() == "" {
		id = "connection"
	}
	a.record(id, "grpc")
	header := func(key, value string) *corev3.HeaderValueOption {
		return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: key, Value: value}}
	}
	switch request.GetHeaders()["x-do"] {
	case "deny":
		return &authv3.CheckResponse{
			Status: &statuspb.Status{Code: int32(codes.PermissionDenied)},
			HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_PaymentRequired}, Body: "denied by the authorizer",
				Headers: []*corev3.HeaderValueOption{header("x-reason", "not you")},
			}},
		}, nil
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	case "fail":
		return nil, errors.New("broken")
	}
	return &authv3.CheckResponse{
		Status: &statuspb.Status{Code: int32(codes.OK)},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{Headers: []*corev3.HeaderValueOption{
			header("x-grpc-user", "joe"), header("x-grpc-body", request.GetBody()+string(request.GetRawBody())),
		}}},
	}, nil
}

// settings returns a mesh config with the authorizers as providers.
func (a *authorizers) settings(t *testing.T) *snapshot.Input {
	t.Helper()
	text := strings.NewReplacer("WEB", a.web, "GRPC", a.grpc, "DEAD", a.dead).Replace(`
extensionProviders:
- name: web
  envoyExtAuthzHttp:
    service: web.example.com
    port: WEB
    pathPrefix: /check
    includeRequestHeadersInCheck: [X-Do, x-id, "x-list-*", "*-token"]
    includeAdditionalHeadersInCheck: {x-from: mesh}
    includeRequestBodyInCheck: {maxRequestBytes: 16, allowPartialMessage: true}
    headersToUpstreamOnAllow: ["x-web-*"]
    headersToDownstreamOnDeny: [x-reason]
    headersToDownstreamOnAllow: [x-answer]
- name: impatient
  envoyExtAuthzHttp: {service: web.example.com, port: WEB, timeout: 0.05s, statusOnError: "504", includeHeadersInCheck: [x-do]}
- {name: gone, envoyExtAuthzHttp: {service: dead.example.com, port: DEAD, statusOnError: "503"}}
- {name: open, envoyExtAuthzHttp: {service: dead.example.com, port: DEAD, failOpen: true}}
- {name: grpc, envoyExtAuthzGrpc: {service: default/grpc.example.com, port: GRPC, includeRequestBodyInCheck: {maxRequestBytes: 16}}}
- {name: grpc-impatient, envoyExtAuthzGrpc: {service: grpc.example.com, port: GRPC, timeout: 0.05s}}
- {name: grpc-gone, envoyExtAuthzGrpc: {service: deadgrpc.example.com, port: DEAD, statusOnError: "502"}}
- {name: grpc-open, envoyExtAuthzGrpc: {service: deadgrpc.example.com, port: DEAD, failOpen: true}}
- {name: nowhere, envoyExtAuthzGrpc: {service: nobody.example.com, port: 80, failOpen: true}}
- {name: no-port, envoyExtAuthzGrpc: {service: grpc.example.com, port: 1, failOpen: true}}
`)
	mesh, err := meshconfig.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &snapshot.Input{Mesh: mesh}
}

// services returns the objects of the authorizers' services.
func (a *authorizers) services() string {
	return documents("", authorizerEntry("web", "HTTP", a.web), authorizerEntry("grpc", "GRPC", a.grpc), authorizerEntry("dead", "HTTP", a.dead), authorizerEntry("deadgrpc", "GRPC", a.dead))
}

// authorizerEntry returns the object of the service of an authorizer on this machine.
func authorizerEntry(name, protocol, port string) string {
	return "kind: ServiceEntry\nmetadata: {name: " + name + ", namespace: default}\nspec: {hosts: [" + name + ".example.com], resolution: STATIC, endpoints: [{address: 127.0.0.1}], " +
		"ports: [{name: port, protocol: " + protocol + ", number: " + port + "}]}\n"
}

// custom returns the text of an AuthorizationPolicy that asks a provider about requests to paths.
func custom(provider string, paths ...string) string {
	return policy(provider, `{action: CUSTOM, provider: {name: `+provider+`}, rules: [{to: [{operation: {ports: ["PORT_HTTP"], paths: [`+strings.Join(paths, ", ")+`]}}]}]}`)
}

// documents joins the texts of objects.
func documents(objects ...string) string { return strings.Join(objects, "---\n") }

func customVerdicts() []verdict {
	return []verdict{
		{"each kind decides about what its rules match", documents(custom("web", "/web*", "/both"), custom("grpc", "/grpc*", "/both")), `
			200 GET /
			200 GET / | X-Do: deny
			200 GET /web
			418 GET /web | X-Do: deny
			403 GET /web | X-Do: fail
			200 GET /grpc
			402 GET /grpc | X-Do: deny
			403 GET /grpc | X-Do: fail
			200 GET /both
			200 GET / | port tcp
		`},
		{"the last actions decide about what an authorizer allows", documents(custom("web", "/*"), policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/no], ports: ["PORT_HTTP"]}}]}]}`)), `
			200 GET /
			403 GET /no
			418 GET /no | X-Do: deny
		`},
		{"authorizers that do not answer", documents(custom("impatient", "/hang"), custom("gone", "/gone"), custom("grpc-impatient", "/grpc-hang"), custom("grpc-gone", "/grpc-gone")), `
			200 GET /
			504 GET /hang | X-Do: hang
			503 GET /gone
			403 GET /grpc-hang | X-Do: hang
			502 GET /grpc-gone
		`},
		{"authorizers that fail open", documents(custom("open", "/web"), custom("grpc-open", "/grpc")), `
			200 GET /web
			200 GET /grpc
		`},
		{
			"authorizers that cannot be asked",
			"# problem: no extension provider \"missing\"\n# problem: \"prometheus\" is not an authorizer\n" +
				"# problem: \"nobody.example.com\", which is not visible in the namespace default\n# problem: port 1, which the service \"grpc.example.com\" does not have\n" +
				documents(custom("missing", "/missing"), custom("prometheus", "/kind"), custom("nowhere", "/nowhere"), custom("no-port", "/port"), custom("web", "/web")), `
			200 GET /
			200 GET /web
			418 GET /web | X-Do: deny
			403 GET /missing
			403 GET /kind
			403 GET /nowhere
			403 GET /port
			200 GET / | port tcp
		`,
		},
		{"connections", policy("streams", `{action: CUSTOM, provider: {name: grpc}, rules: [{to: [{operation: {ports: ["PORT_TCP"]}}]}]}`), `
			200 GET / | X-Do: deny
			200 GET / | port tcp
		`},
		{"connections whose authorizer fails", policy("streams", `{action: CUSTOM, provider: {name: grpc-gone}, rules: [{to: [{operation: {ports: ["PORT_TCP"]}}]}]}`), `
			200 GET /
			0 GET / | port tcp
		`},
		{"connections whose authorizer fails open", policy("streams", `{action: CUSTOM, provider: {name: grpc-open}, rules: [{to: [{operation: {ports: ["PORT_TCP"]}}]}]}`), `
			200 GET / | port tcp
		`},
		{"connections and an authorizer over HTTP", policy("streams", `{action: CUSTOM, provider: {name: open}, rules: [{to: [{operation: {ports: ["PORT_TCP"]}}]}]}`), `
			200 GET /
			0 GET / | port tcp
		`},
	}
}

// TestExternalAuthorizers sends requests through the real Envoy, which asks real authorizers.
func TestExternalAuthorizers(t *testing.T) {
	t.Parallel()
	a := newAuthorizers(t)
	verdicts := customVerdicts()
	a.faulty = strings.Contains(envoyVersion(t), "/1.37.0/")
	for i := range verdicts {
		if a.faulty {
			verdicts[i].requests = strings.NewReplacer("504 GET /hang", "403 GET /hang", "503 GET /gone", "403 GET /gone").Replace(verdicts[i].requests)
		}
		verdicts[i].policies += a.services()
	}
	c := newCourt(t, "127.77.58.2", func() *snapshot.Input { return a.settings(t) }, verdicts)
	for i, v := range verdicts {
		t.Run(v.name, func(t *testing.T) { c.check(t, i, v) })
	}
	t.Run("messages", func(t *testing.T) { a.checkMessages(t, c) })
}

// checkMessages compares what authorizers and their callers receive. The first verdict of the court
// asks both.
func (a *authorizers) checkMessages(t *testing.T, c *court) {
	t.Helper()
	for i, m := range []struct {
		path, do, body string
		status         int
		asked          []string
		answer, served []string // parts of the response's header and body
		not            string   // in neither
	}{
		{"/", "", "", 200, nil, nil, []string{"X-Hidden: hidden"}, "X-Web"},
		{"/web/x", "", "hello", 200, []string{"web"}, []string{"X-Answer: seen"}, []string{"X-Web-User: jane", "X-Web-Path: /check/web/x", "X-Web-Body: hello", "X-Web-From: mesh", "X-Web-Listed: listedtoken"}, "secret"},
		{"/web", "", "more than sixteen bytes", 200, []string{"web"}, nil, []string{"X-Web-Body: more than sixtee\r"}, "X-Web-Hidden: hidden"},
		{"/web", "deny", "", 418, []string{"web"}, []string{"X-Reason: not you"}, []string{"denied by the authorizer"}, "secret"},
		{"/grpc", "", "hello", 200, []string{"grpc"}, nil, []string{"X-Grpc-User: joe", "X-Grpc-Body: hello"}, "X-Web"},
		{"/grpc", "", "more than sixteen bytes", 413, nil, nil, nil, "X-Grpc"},
		{"/grpc", "deny", "", 402, []string{"grpc"}, []string{"X-Reason: not you"}, []string{"denied by the authorizer"}, "X-Grpc"},
		{"/both", "", "", 200, []string{"grpc", "web"}, nil, []string{"X-Grpc-User: joe", "X-Web-User: jane"}, "secret"},
	} {
		id := strconv.Itoa(i)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+net.JoinHostPort(c.address, c.ports[0]["HTTP"])+m.path, strings.NewReader(m.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Do": {m.do}, "X-Id": {id}, "X-Hidden": {"hidden"}, "X-List-1": {"listed"}, "One-Token": {"token"}}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		var header strings.Builder
		_ = resp.Header.Write(&header)
		if got := a.askedAbout(id); resp.StatusCode != m.status || !slices.Equal(got, m.asked) {
			t.Errorf("%s %s: got status %d and asked %q, want %d and %q", m.path, m.do, resp.StatusCode, got, m.status, m.asked)
		}
		for _, want := range m.answer {
			if a.faulty && m.path == "/web" && m.do == "deny" {
				continue
			}
			if !strings.Contains(header.String(), want) {
				t.Errorf("%s %s: no %q in the header %q", m.path, m.do, want, header.String())
			}
		}
		for _, want := range m.served {
			if !strings.Contains(string(body), want) {
				t.Errorf("%s %s: no %q in the body %q", m.path, m.do, want, body)
			}
		}
		if strings.Contains(header.String()+string(body), m.not) {
			t.Errorf("%s %s: got %q in %q or %q", m.path, m.do, m.not, header.String(), body)
		}
	}
	if got := a.askedAbout("connection"); !slices.Equal(got, []string{"grpc"}) {
		t.Errorf("asked %q about connections, want grpc once", got)
	}
}

// TestAuthorizersByProxy checks what depends on the proxy that asks.
func TestAuthorizersByProxy(t *testing.T) {
	t.Parallel()
	mesh, err := meshconfig.Parse([]byte(`extensionProviders: [{name: a, envoyExtAuthzGrpc: {service: authz/a.example.com, port: 80}}]`))
	if err != nil {
		t.Fatal(err)
	}
	const custom = `
kind: AuthorizationPolicy
metadata: {name: a, namespace: istio-system}
spec: {action: CUSTOM, provider: {name: a}, rules: [{}]}
`
	entry := func(namespace, more string) string {
		return "---\nkind: ServiceEntry\nmetadata: {name: a, namespace: " + namespace + "}\n" +
			"spec: {hosts: [a.example.com], location: MESH_INTERNAL, ports: [{name: grpc, protocol: GRPC, number: 80}], " + more + "}\n"
	}
	const static = "resolution: STATIC, endpoints: [{address: 10.0.0.7}]"
	sidecar := model.Proxy{Role: "sidecar", Namespace: "default", IPs: []string{"10.0.0.1"}, Interception: model.InterceptionRedirect}
	router := model.Proxy{Role: "router", Namespace: "default", IPs: []string{"10.0.0.1"}, Labels: map[string]string{"app": "edge"}}
	gateway := `---
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`
	grpcServer := *grpcAt("10.0.0.1", func(p *model.Proxy) { p.Namespace, p.Listens = "default", []string{"0.0.0.0:8080"} })
	for _, tc := range []struct {
		name, objects string
		proxy         model.Proxy
		asked         bool
		problem       string // of the snapshot or the listeners
	}{
		{"a sidecar", entry("authz", static), sidecar, true, ""},
		{"a sidecar that does not import it", entry("authz", static) + "---\nkind: Sidecar\nmetadata: {name: none, namespace: default}\nspec: {egress: [{hosts: [./none.example.com]}]}\n", sidecar, true, ""},
		{"a gateway", entry("authz", static) + gateway, router, true, ""},
		{"a gateway in a namespace with a Sidecar", entry("authz", static) + gateway + "---\nkind: Sidecar\nmetadata: {name: none, namespace: default}\nspec: {egress: [{hosts: [./none.example.com]}]}\n", router, true, ""},
		{"a service of the namespace has the same host", entry("authz", static) + entry("default", static), sidecar, false, "reach the service of the same host in the namespace default"},
		{"not exported", entry("authz", static+", exportTo: [istio-system]"), sidecar, false, "which is not visible in the namespace default"},
		{"an address that only the caller knows", entry("authz", "resolution: NONE"), sidecar, false, "the proxy cannot choose an endpoint"},
		{"a gRPC server", entry("authz", static), grpcServer, false, "a gRPC server without a proxy calls no authorizer"},
	} {
		objects := decode(t, strings.TrimSpace(custom+tc.objects))
		built := snapshot.Build(nil, inputOf(objects, mesh), model.Change{All: true})
		g := New(Config{FilterGatewayClusters: true})
		listeners := g.Generate(built, &tc.proxy, xds.TypeListener)
		enforced := 0
		for _, r := range listeners.Resources {
			text := string(r.Any)
			if !strings.Contains(text, "policy[a]") {
				continue // an outbound listener
			}
			enforced++
			if got := strings.Contains(text, "ext_authz"); got != tc.asked {
				t.Errorf("%s: the listener %s asks the authorizer: %t, want %t", tc.name, r.Name, got, tc.asked)
			}
		}
		if enforced == 0 {
			t.Errorf("%s: no listener enforces the policy", tc.name)
		}
		if tc.asked {
			for _, typeURL := range []string{xds.TypeCluster, xds.TypeEndpoint} {
				if g.Generate(built, &tc.proxy, typeURL).Get("outbound|80||a.example.com") == nil {
					t.Errorf("%s: no %s of the authorizer", tc.name, typeURL)
				}
			}
		}
		var problems []string
		for _, p := range slices.Concat(built.Problems, listeners.Problems) {
			problems = append(problems, p.Reason)
		}
		if got := strings.Join(problems, "\n"); tc.problem == "" && got != "" || !strings.Contains(got, tc.problem) || len(problems) > 1 {
			t.Errorf("%s: problems %q, want one with %q", tc.name, got, tc.problem)
		}
	}
}
