// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/route"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

func to(host string, weight int32) *networkingv1alpha3.HTTPRouteDestination {
	return &networkingv1alpha3.HTTPRouteDestination{Destination: &networkingv1alpha3.Destination{Host: host}, Weight: weight}
}

func uri(prefix string) *networkingv1alpha3.StringMatch {
	return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: prefix}}
}

// TestSpoiltRouteHarmsNobody passes routes that validation rejects to the generator. Each must be
// replaced by 503 or omitted, the author must be warned, and Envoy must accept the rest.
func TestSpoiltRouteHarmsNobody(t *testing.T) {
	t.Parallel()
	regex := func(expr string) *networkingv1alpha3.StringMatch {
		return &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: expr}}
	}
	headers := func(name, value string) *networkingv1alpha3.Headers {
		return &networkingv1alpha3.Headers{Request: &networkingv1alpha3.Headers_HeaderOperations{Set: map[string]string{name: value}}}
	}
	match := []*networkingv1alpha3.HTTPMatchRequest{{Uri: uri("/x")}}
	dest := []*networkingv1alpha3.HTTPRouteDestination{to("svc-0000", 0)}
	tests := []struct {
		name     string
		route    *networkingv1alpha3.HTTPRoute
		status   uint32 // of the direct response; 0 means omitted
		reported bool
	}{
		{"regex of the path", &networkingv1alpha3.HTTPRoute{Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: regex("(")}}, Route: dest}, 0, true},
		{"regex of a header", &networkingv1alpha3.HTTPRoute{Match: []*networkingv1alpha3.HTTPMatchRequest{
			{Uri: uri("/x"), Headers: map[string]*networkingv1alpha3.StringMatch{"a": regex("[")}},
		}, Route: dest}, 0, true},
		{"regex of Go, not of Envoy", &networkingv1alpha3.HTTPRoute{Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: regex(`\p{Letter}`)}}, Route: dest}, 0, true},
		{"regex of wide characters", &networkingv1alpha3.HTTPRoute{Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: regex(`\x{100}`)}}, Route: dest}, 0, true},
		{"large regex", &networkingv1alpha3.HTTPRoute{Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: regex(strings.Repeat("(.{1000})", 90))}}, Route: dest}, 0, true},
		{"regex that is just not too large", &networkingv1alpha3.HTTPRoute{
			Match: []*networkingv1alpha3.HTTPMatchRequest{{Uri: regex(strings.Repeat("(?:x{100}){10}", 14) + strings.Repeat("[acegikmoq]{50}", 2))}}, DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 203},
		}, 203, false},
		{"value that is not UTF-8", &networkingv1alpha3.HTTPRoute{Match: match, Route: dest, Headers: headers("x-y", "\xff")}, 503, true},
		{"status", &networkingv1alpha3.HTTPRoute{Match: match, DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 42}}, 503, true},
		{"regex of a rewrite", &networkingv1alpha3.HTTPRoute{Match: match, Route: dest, Rewrite: &networkingv1alpha3.HTTPRewrite{
			UriRegexRewrite: &networkingv1alpha3.RegexRewrite{Match: "(", Rewrite: "x"},
		}}, 503, true},
		{"long body", &networkingv1alpha3.HTTPRoute{Match: match, DirectResponse: &networkingv1alpha3.HTTPDirectResponse{
			Status: 200, Body: &networkingv1alpha3.HTTPBody{Specifier: &networkingv1alpha3.HTTPBody_String_{String_: strings.Repeat("x", route.MaxBody+1)}},
		}}, 503, false},
		{"no weight", &networkingv1alpha3.HTTPRoute{Match: match, Route: []*networkingv1alpha3.HTTPRouteDestination{to("svc-0000", 0), to("svc-0001", 0)}}, 503, false},
		{"no destination", &networkingv1alpha3.HTTPRoute{Match: match}, 503, false},
		{"delegate", &networkingv1alpha3.HTTPRoute{Match: match, Delegate: &networkingv1alpha3.Delegate{Name: "x"}}, 503, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.edit(model.Key{Kind: model.VirtualService, Namespace: "default", Name: "svc-0000"}, func(c *model.Config) {
				c.Spec = &networkingv1alpha3.VirtualService{Hosts: []string{"svc-0000"}, Http: []*networkingv1alpha3.HTTPRoute{tc.route, {Route: dest}}}
			})
			set := New(Config{}).Generate(w.mesh, proxyAt("127.1.0.2"), xds.TypeRoute)
			if got := len(set.Problems) > 0; got != tc.reported {
				t.Errorf("problems: %v", set.Problems)
			}
			routes := unpack(t, set.Get(httpProxyRoute)).(*routev3.RouteConfiguration).GetVirtualHosts()[0].GetRoutes()
			if tc.status == 0 {
				if len(routes) != 1 {
					t.Errorf("%d routes, want only the one that is valid", len(routes))
				}
			} else if got := routes[0].GetDirectResponse().GetStatus(); got != tc.status {
				t.Errorf("the route answers %d, want %d", got, tc.status)
			}
			validateWithEnvoy(t, envoytest.Binary(t), w.mesh, proxyAt("127.1.0.2"))
		})
	}
}

// FuzzDefaultEndpoint checks that Envoy accepts every endpoint that the generator accepts.
func FuzzDefaultEndpoint(f *testing.F) {
	for _, seed := range []string{"", "127.0.0.1:80", "0.0.0.0:80", "[::1]:80", "[::]:80", "unix:///a", "unix://", ":80", "a:b", "1.2.3.4:70000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		i := &ingress{target: &target{proxy: proxyAt("127.1.0.2")}}
		address, _, ok := i.destination(in, 80)
		if !ok {
			return
		}
		if err := address.Validate(); err != nil {
			t.Fatalf("%q: %v", in, err)
		}
	})
}
