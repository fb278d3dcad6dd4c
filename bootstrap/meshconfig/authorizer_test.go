// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"strconv"
	"strings"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

func TestAuthorizers(t *testing.T) {
	t.Parallel()
	const good = "service: authz.example.com, port: 80"
	for _, tc := range []struct {
		fields string // of envoyExtAuthzHttp
		want   string // a part of the error; empty if the fields are valid
	}{
		{good, ""},
		{"service: shop/authz.example.com, port: 80, timeout: 1s, pathPrefix: /check, failOpen: true, statusOnError: '503'", ""},
		{good + ", includeRequestHeadersInCheck: [Cookie, 'x-*', '*-token'], includeAdditionalHeadersInCheck: {x-a: 'b c'}", ""},
		{good + ", includeRequestBodyInCheck: {maxRequestBytes: 1}", ""},
		{"port: 80", `extensionProviders["a"].envoyExtAuthzHttp.service is ""; it must be the full host`},
		{"service: '*.example.com', port: 80", `service is "*.example.com"`},
		{"service: 'authz.example.com:80', port: 80", `service is "authz.example.com:80"`},
		{"service: /authz.example.com, port: 80", `service is "/authz.example.com"`},
		{"service: authz.example.com", "port is 0; it must be from 1 to 65535"},
		{"service: authz.example.com, port: 65536", "port is 65536"},
		{good + ", timeout: 0s", "timeout is 0s; it must be at least 1ms"},
		{good + ", timeout: -1s", "timeout is -1s"},
		{good + ", statusOnError: none", `statusOnError is "none"; it must be the number of an HTTP status`},
		{good + ", statusOnError: '600'", `statusOnError is "600"`},
		{good + ", pathPrefix: check", `pathPrefix is "check"; it must start with "/"`},
		{good + ", pathPrefix: '/check?x='", `pathPrefix is "/check?x="`},
		{good + ", includeRequestBodyInCheck: {}", "includeRequestBodyInCheck.maxRequestBytes is 0"},
		{good + ", includeRequestHeadersInCheck: ['*']", `includeRequestHeadersInCheck[0] is "*"`},
		{good + ", includeHeadersInCheck: ['a b']", `includeHeadersInCheck[0] is "a b"`},
		{good + ", headersToUpstreamOnAllow: [x, '*x*']", `headersToUpstreamOnAllow[1] is "*x*"`},
		{good + ", headersToDownstreamOnDeny: ['x*y']", `headersToDownstreamOnDeny[0] is "x*y"`},
		{good + ", headersToDownstreamOnAllow: ['']", `headersToDownstreamOnAllow[0] is ""`},
		{good + ", includeAdditionalHeadersInCheck: {':path': /}", `includeAdditionalHeadersInCheck has the name ":path"`},
		{good + `, includeAdditionalHeadersInCheck: {x: "a\nb"}`, `includeAdditionalHeadersInCheck["x"] contains a control character`},
	} {
		err := checkProvider(t, "envoyExtAuthzHttp: {"+tc.fields+"}")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("{%s}: got %v, want %q", tc.fields, err, tc.want)
		}
	}
	err := checkProvider(t, "envoyExtAuthzGrpc: {service: x}")
	if err == nil || !strings.Contains(err.Error(), `extensionProviders["a"].envoyExtAuthzGrpc.port is 0`) {
		t.Errorf("got %v for an authorizer over gRPC without a port", err)
	}
}

// TestStatusOnError compares the accepted statuses with those of Envoy.
func TestStatusOnError(t *testing.T) {
	t.Parallel()
	for n := range 1000 {
		_, known := typev3.StatusCode_name[int32(n)]
		if got, want := isStatus(strconv.Itoa(n)), known && n >= 200; got != want {
			t.Errorf("status %d: got %t, want %t", n, got, want)
		}
	}
}

// checkProvider parses a mesh config with one extension provider, which must succeed, and checks
// the provider.
func checkProvider(t *testing.T, fields string) error {
	t.Helper()
	mesh, err := Parse([]byte("extensionProviders: [{name: a, " + fields + "}]"))
	if err != nil {
		t.Fatalf("a wrong provider must not refuse the mesh config: %v", err)
	}
	for _, provider := range mesh.GetExtensionProviders() {
		if provider.GetName() == "a" {
			return CheckAuthorizer(provider)
		}
	}
	t.Fatal("the provider is not there")
	return nil
}
