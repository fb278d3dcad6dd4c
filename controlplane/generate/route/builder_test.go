// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// builderOf returns a builder and the host web.test, with its VirtualService in JSON.
func builderOf(t *testing.T, gateway, spec string) (*Builder, *Host) {
	t.Helper()
	vs := &networkingv1alpha3.VirtualService{}
	if err := protojson.Unmarshal([]byte(spec), vs); err != nil {
		t.Fatal(err)
	}
	vs.Hosts = []string{"web.test"}
	if gateway != Sidecars {
		vs.Gateways = []string{gateway}
	}
	obj := &model.Config{Key: model.Key{Kind: model.VirtualService, Namespace: "default", Name: "web"}, Spec: vs}
	mesh := snapshot.Build(nil, snapshot.Input{List: func(kind model.Kind) []*model.Config {
		if kind == model.VirtualService {
			return []*model.Config{obj}
		}
		return nil
	}}, model.Change{All: true})
	rules := mesh.VirtualServices.For("web.test", "default")
	if gateway != Sidecars {
		rules = mesh.VirtualServices.OfGateway(gateway)[0]
	}
	b := &Builder{
		Mesh: mesh, Gateway: gateway, Service: func(string) *model.Service { return nil },
		Proxy: &model.Proxy{Namespace: "default", Labels: map[string]string{"app": "edge"}},
	}
	return b, &Host{Name: "web.test", Port: 443, Rules: rules}
}

// one returns the only route.
func one(t *testing.T, b *Builder, h *Host) *routev3.Route {
	t.Helper()
	routes := b.Routes(h)
	if len(routes) != 1 {
		t.Fatalf("%d routes, want one; problems: %v", len(routes), b.Problems)
	}
	return routes[0]
}

func TestRedirectPort(t *testing.T) {
	t.Parallel()
	tests := []struct {
		redirect string
		tls      bool
		want     uint32
	}{
		{`{"uri":"/x"}`, true, 0},
		{`{"port":443}`, true, 0},
		{`{"port":443}`, false, 443},
		{`{"port":80}`, true, 80},
		{`{"port":80}`, false, 0},
		{`{"port":443,"scheme":"http"}`, true, 443},
		{`{"port":443,"scheme":"https"}`, false, 0},
		{`{"derivePort":"FROM_REQUEST_PORT"}`, true, 0},
		{`{"derivePort":"FROM_REQUEST_PORT"}`, false, 443},
		{`{"derivePort":"FROM_PROTOCOL_DEFAULT"}`, false, 0},
	}
	for _, tc := range tests {
		b, h := builderOf(t, "default/edge", `{"http":[{"redirect":`+tc.redirect+`}]}`)
		b.TLS = tc.tls
		if got := one(t, b, h).GetRedirect().GetPortRedirect(); got != tc.want {
			t.Errorf("%s, TLS %t: port %d, want %d", tc.redirect, tc.tls, got, tc.want)
		}
	}
}

// TestRedirectOfTheRoot checks that the replacement of the root prefix ends in a slash if prefixes
// match whole segments: /foo becomes /v2/foo, not /v2foo.
func TestRedirectOfTheRoot(t *testing.T) {
	t.Parallel()
	for semantics, want := range map[string]string{"": "/v2", "gateway": "/v2/", "ingress": "/v2/"} {
		b, h := builderOf(t, "default/edge", `{"http":[{"match":[{"uri":{"prefix":"/"}}],"redirect":{"prefixRewrite":"/v2"}}]}`)
		h.Rules.Config.Annotations = map[string]string{semanticsAnnotation: semantics}
		if got := one(t, b, h).GetRedirect().GetPrefixRewrite(); got != want {
			t.Errorf("semantics %q: the prefix becomes %q, want %q", semantics, got, want)
		}
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	tests := []struct {
		route   string
		builder time.Duration
		want    time.Duration
	}{
		{``, 0, 0},
		{``, 3 * time.Second, 3 * time.Second},
		{`,"timeout":"0s"`, 3 * time.Second, 0},
		{`,"timeout":"1s"`, 3 * time.Second, time.Second},
		{`,"timeout":"-1s"`, 0, 0},
		{`,"timeout":"315576000000s"`, 0, 100 * 365 * 24 * time.Hour},
	}
	for _, tc := range tests {
		b, h := builderOf(t, Sidecars, `{"http":[{"route":[{"destination":{"host":"a"}}]`+tc.route+`}]}`)
		b.Timeout = tc.builder
		if got := one(t, b, h).GetRoute().GetTimeout().AsDuration(); got != tc.want {
			t.Errorf("%s, default %v: %v, want %v", tc.route, tc.builder, got, tc.want)
		}
	}
	b, h := builderOf(t, Sidecars, `{}`)
	b.Timeout = time.Minute
	if got := b.Default(h).GetRoute().GetTimeout().AsDuration(); got != time.Minute {
		t.Errorf("a route without a VirtualService: %v", got)
	}
}

// TestGateways checks that conditions on the caller do not apply to a match that names Gateways.
func TestGateways(t *testing.T) {
	t.Parallel()
	tests := []struct {
		match string
		want  map[string]bool // by gateway
	}{
		{`{"uri":{"prefix":"/"}}`, map[string]bool{Sidecars: true, "default/edge": true}},
		{`{"gateways":["mesh"]}`, map[string]bool{Sidecars: true, "default/edge": false}},
		{`{"gateways":["edge"]}`, map[string]bool{Sidecars: false, "default/edge": true, "other/edge": false}},
		{`{"gateways":["default/edge","mesh"]}`, map[string]bool{Sidecars: true, "default/edge": true}},
		{`{"gateways":["edge","mesh"],"sourceLabels":{"app":"other"}}`, map[string]bool{Sidecars: false, "default/edge": true}},
		{`{"gateways":["edge","mesh"],"sourceNamespace":"other"}`, map[string]bool{Sidecars: false, "default/edge": true}},
		{`{"sourceLabels":{"app":"edge"}}`, map[string]bool{Sidecars: true, "default/edge": true}},
		{`{"sourceLabels":{"app":"other"}}`, map[string]bool{Sidecars: false, "default/edge": false}},
		{`{"port":443}`, map[string]bool{Sidecars: true, "default/edge": true}},
		{`{"port":80}`, map[string]bool{Sidecars: false, "default/edge": false}},
		{`{"port":80,"gateways":["edge"]}`, map[string]bool{"default/edge": false}},
	}
	for _, tc := range tests {
		for gateway, want := range tc.want {
			b, h := builderOf(t, gateway, `{"http":[{"match":[`+tc.match+`],"directResponse":{"status":200}}]}`)
			if got := len(b.Routes(h)) == 1; got != want {
				t.Errorf("%s at %s: %t, want %t", tc.match, gateway, got, want)
			}
		}
	}
}

// TestClaims checks that gateways match claims in the metadata of Envoy's JWT filter. Sidecars
// have no claims, so a route that requires one never matches.
func TestClaims(t *testing.T) {
	t.Parallel()
	const spec = `{"http":[{"match":[{"headers":{"@request.auth.claims.group":{"exact":"dev"}},"withoutHeaders":{"@request.auth.claims[a.b][c]":{}}}],"directResponse":{"status":200}}]}`
	b, h := builderOf(t, "default/edge", spec)
	match := one(t, b, h).GetMatch()
	want := &routev3.RouteMatch{}
	if err := protojson.Unmarshal([]byte(`{"prefix":"/","dynamicMetadata":[
		{"filter":"envoy.filters.http.jwt_authn","path":[{"key":"payload"},{"key":"group"}],
		 "value":{"orMatch":{"valueMatchers":[{"stringMatch":{"exact":"dev"}},{"listMatch":{"oneOf":{"stringMatch":{"exact":"dev"}}}}]}}},
		{"filter":"envoy.filters.http.jwt_authn","path":[{"key":"payload"},{"key":"a.b"},{"key":"c"}],"value":{"presentMatch":true},"invert":true}]}`), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, match, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if takesAll(match) {
		t.Error("a match of claims takes everything")
	}
	b, h = builderOf(t, Sidecars, spec)
	if routes := b.Routes(h); len(routes) > 0 || len(b.Problems) != 1 || !strings.Contains(b.Problems[0].Reason, "spec.http[0]: claims of tokens are available at gateways only") {
		t.Errorf("at sidecars: %v, problems %v", routes, b.Problems)
	}
}

// TestSpoiltFilters checks that a route with an invalid filter is replaced by a 503 response and
// reported to its author.
func TestSpoiltFilters(t *testing.T) {
	t.Parallel()
	for name, route := range map[string]string{
		"origin":           `"corsPolicy":{"allowOrigins":[{"regex":"("}]}`,
		"header":           `"corsPolicy":{"allowHeaders":["x\r\nset-cookie: y"]}`,
		"method":           `"corsPolicy":{"allowMethods":["GET\n"]}`,
		"status":           `"fault":{"abort":{"httpStatus":7,"percentage":{"value":1}}}`,
		"status of gRPC":   `"fault":{"abort":{"grpcStatus":"14","percentage":{"value":1}}}`,
		"weights too high": `"route":[{"destination":{"host":"a"},"weight":2147483647},{"destination":{"host":"a"},"weight":2147483647},{"destination":{"host":"a"},"weight":2147483647}]`,
	} {
		if !strings.HasPrefix(route, `"route"`) {
			route += `,"route":[{"destination":{"host":"a"}}]`
		}
		b, h := builderOf(t, Sidecars, `{"http":[{`+route+`}]}`)
		got := one(t, b, h)
		if got.GetDirectResponse().GetStatus() != 503 || len(b.Problems) != 1 || !strings.Contains(b.Problems[0].Reason, "spec.http[0]: ") {
			t.Errorf("%s: %v, problems %v", name, got.GetAction(), b.Problems)
		}
	}
}

// FuzzRoutes builds routes from random messages. Envoy must accept each of them, and two builds
// must be equal.
func FuzzRoutes(f *testing.F) {
	for _, seed := range []string{
		`{"http":[{"match":[{"uri":{"prefix":"/a"},"headers":{"x":{"regex":"*"}}}],"route":[{"destination":{"host":"a"},"weight":1}],"rewrite":{"uri":"/"}}]}`,
		`{"http":[{"redirect":{"prefixRewrite":"/","derivePort":"FROM_REQUEST_PORT"}},{"directResponse":{"status":200,"body":{"string":"x"}}}]}`,
		`{"http":[{"corsPolicy":{"allowOrigins":[{"regex":".*"}],"maxAge":"1s"},"fault":{"delay":{"fixedDelay":"1s","percentage":{"value":1}}},"route":[{"destination":{"host":"a"}}]}]}`,
		`{"http":[{"retries":{"attempts":3,"retryOn":"5xx,503","backoff":"1s"},"timeout":"1s","mirrors":[{"destination":{"host":"b"}}],"route":[{"destination":{"host":"a"}}]}]}`,
	} {
		vs := &networkingv1alpha3.VirtualService{}
		if err := protojson.Unmarshal([]byte(seed), vs); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(vs)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
		f.Add(b, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, segments bool) {
		vs := &networkingv1alpha3.VirtualService{}
		if proto.Unmarshal(data, vs) != nil {
			return
		}
		obj := &model.Config{Key: model.Key{Kind: model.VirtualService, Namespace: "default", Name: "web"}, Spec: vs}
		if segments {
			obj.Annotations = map[string]string{semanticsAnnotation: "gateway"}
		}
		build := func() []*routev3.Route {
			b, h := builderOf(t, Sidecars, `{}`)
			h.Rules = &snapshot.VirtualService{Config: obj, Spec: vs}
			return b.Routes(h)
		}
		routes := build()
		for _, r := range routes {
			if err := check(r); err != nil {
				t.Errorf("a route that is refused: %v", err)
			}
		}
		if !slices.EqualFunc(routes, build(), func(a, b *routev3.Route) bool { return proto.Equal(a, b) }) {
			t.Error("two builds differ")
		}
	})
}
