// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestGRPCServerPolicies enforces policies at grpc-go's own xDS server. Rules that it cannot
// evaluate, such as those of tokens, are refused, and no policy makes it reject its listener.
func TestGRPCServerPolicies(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.13"), newWireCA(t)
	server := wireApp{ip: "127.77.60.51", name: "server", certificates: ca.issue(t, "server")}.serve(t, w, "127.77.60.51:0")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"):          wireAccount(wireHost, "server", server.address),
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "echo"):       wireMutual(wireHost),
	})
	client := wireApp{ip: "127.77.60.52", name: "client", certificates: ca.issue(t, "client")}.dial(t, w, "xds:///echo:7070")
	client.calls(wireID("client"))

	const check = "/grpc.health.v1.Health/Check"
	ask := func(headers []string) (code codes.Code) {
		t.Helper()
		until(t, "a call is answered", func() bool { // a server closes connections when its listener changes
			_, _, err := client.ask(headers...)
			code = status.Code(err)
			return code == codes.OK || code == codes.PermissionDenied
		})
		return code
	}
	const ok, denied = codes.OK, codes.PermissionDenied
	for _, c := range []struct {
		policy, tokens string // the specs of the objects
		calls          map[codes.Code][][]string
	}{
		{policy: `{"rules": [{"from": [{"source": {"principals": ["cluster.local/ns/default/sa/client"]}}], "to": [{"operation": {"paths": ["` + check + `"], "methods": ["POST"]}}]}]}`, calls: map[codes.Code][][]string{ok: {nil}}},
		{policy: `{"rules": [{"from": [{"source": {"principals": ["cluster.local/ns/default/sa/other"]}}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/GRPC.health.v1.health/*"]}}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"when": [{"key": "request.headers[X-Team]", "values": ["red"]}]}]}`, calls: map[codes.Code][][]string{
			ok: {nil, {"x-team", "blue"}}, denied: {{"x-team", "red"}, {"x-team", "blue", "x-team", "red"}},
		}},
		{policy: `{"rules": [{"when": [{"key": "request.headers[X-Team]", "values": ["red"]}]}]}`, calls: map[codes.Code][][]string{
			ok: {{"x-team", "red"}}, denied: {nil, {"x-team", "blue"}, {"x-team", "red", "x-team", "blue"}},
		}},
		// An attribute that the server does not know: ALLOW never matches, and DENY always does.
		{policy: `{"rules": [{"from": [{"source": {"requestPrincipals": ["*"]}}]}]}`, calls: map[codes.Code][][]string{denied: {nil, {"authorization", "Bearer x"}}}},
		{policy: `{"rules": [{"when": [{"key": "request.auth.claims[a]", "notValues": ["b"]}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"from": [{"source": {"requestPrincipals": ["a/b"]}}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"from": [{"source": {"notRequestPrincipals": ["*"]}}], "to": [{"operation": {"paths": ["/other"]}}]}]}`, calls: map[codes.Code][][]string{ok: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"when": [{"key": "request.auth.claims[a]", "values": ["b"]}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"when": [{"key": "connection.sni", "values": ["b"]}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"action": "DENY", "rules": [{"when": [{"key": "request.headers[Grpc-Timeout]", "values": ["b"]}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{policy: `{"rules": [{"when": [{"key": "request.headers[grpc-timeout]", "values": ["*"]}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		// Tokens are not validated: a request with one is refused.
		{tokens: `{"jwtRules": [{"issuer": "a", "jwks": "{\"keys\":[]}"}]}`, calls: map[codes.Code][][]string{
			ok: {nil, {"authorization", "Basic x"}}, denied: {{"authorization", "Bearer x"}, {"authorization", "bearer x"}, {"authorization", "Basic x", "authorization", "Bearer x"}},
		}},
		{tokens: `{"jwtRules": [{"issuer": "a", "jwks": "{\"keys\":[]}", "fromHeaders": [{"name": "X-Token"}], "fromCookies": ["session"]}]}`, calls: map[codes.Code][][]string{
			ok: {nil, {"authorization", "Bearer x"}, {"cookie", "a=b"}}, denied: {{"x-token", "x"}, {"cookie", "a=b; session=x"}},
		}},
		{tokens: `{"jwtRules": [{"issuer": "a", "jwks": "{\"keys\":[]}", "fromHeaders": [{"name": "grpc-token"}]}]}`, calls: map[codes.Code][][]string{denied: {nil}}},
		{calls: map[codes.Code][][]string{ok: {nil, {"authorization", "Bearer x"}}}},
	} {
		// Before, the opposite of what the first call shows is in force.
		first, before := denied, proto.Message(nil)
		if len(c.calls[ok]) > 0 {
			first, before = ok, &securityv1beta1.AuthorizationPolicy{}
		}
		put := func(policy, tokens proto.Message, result codes.Code, headers []string) {
			t.Helper()
			w.putAll(map[model.Key]proto.Message{wireKey(model.AuthorizationPolicy, "p"): policy, wireKey(model.RequestAuthentication, "p"): tokens})
			until(t, c.policy+c.tokens+": "+result.String(), func() bool { return ask(headers) == result })
		}
		put(before, nil, map[codes.Code]codes.Code{ok: denied, denied: ok}[first], nil)
		put(wireSpec(t, c.policy, &securityv1beta1.AuthorizationPolicy{}), wireSpec(t, c.tokens, &securityv1beta1.RequestAuthentication{}), first, c.calls[first][0])
		for want, calls := range c.calls {
			for _, headers := range calls {
				if got := ask(headers); got != want {
					t.Errorf("%s%s: a call with %q ends %s, want %s", c.policy, c.tokens, headers, got, want)
				}
			}
		}
	}
	if mode := server.mode(); mode != connectivity.ServingModeServing || strings.Contains(w.logged.String(), "rejected") {
		t.Errorf("the server is %s, and the log is %s", mode, w.logged.String())
	}
}

// wireSpec returns the spec that a text has, or nil for none.
func wireSpec(t *testing.T, text string, spec proto.Message) proto.Message {
	t.Helper()
	if text == "" {
		return nil
	}
	if err := protojson.Unmarshal([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}
