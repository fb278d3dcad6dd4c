// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestGRPCAuthorization has grpc-go's own xDS server enforce AuthorizationPolicies. Attributes that
// the library ignores make a rule refuse: it would otherwise match every call.
func TestGRPCAuthorization(t *testing.T) {
	t.Parallel()
	w, ca := newWireMesh(t, "127.77.60.13"), newWireCA(t)
	server := wireApp{ip: "127.77.60.51", name: "server", certificates: ca.issue(t, "server")}.serve(t, w, "127.77.60.51:0")
	w.putAll(map[model.Key]proto.Message{
		wireKey(model.ServiceEntry, "echo"):          wireAccount(wireHost, "server", server.address),
		wireKey(model.PeerAuthentication, "default"): wireMode(securityv1beta1.PeerAuthentication_MutualTLS_STRICT),
		wireKey(model.DestinationRule, "echo"):       wireMutual(wireHost),
	})
	client := wireApp{ip: "127.77.60.52", name: "client", certificates: ca.issue(t, "client")}.dial(t, w, "xds:///echo:7070")
	other := wireApp{ip: "127.77.60.53", name: "other", certificates: ca.issue(t, "other")}.dial(t, w, "xds:///echo:7070")
	client.calls(wireID("client"))
	other.calls(wireID("other"))
	denied := func(c *wireClient) {
		t.Helper()
		until(t, "calls are denied", func() bool {
			_, _, err := c.ask()
			return status.Code(err) == codes.PermissionDenied
		})
	}
	source := []*securityv1beta1.Rule_From{{Source: &securityv1beta1.Source{ServiceAccounts: []string{"default/client"}}}}
	operation := func(o *securityv1beta1.Operation) []*securityv1beta1.Rule_To {
		return []*securityv1beta1.Rule_To{{Operation: o}}
	}
	sni := []*securityv1beta1.Condition{{Key: "connection.sni", Values: []string{"*"}}}
	for _, tc := range []struct {
		name   string
		action securityv1beta1.AuthorizationPolicy_Action
		rule   *securityv1beta1.Rule
		serves bool // the client; nobody else is ever served by ALLOW, and everybody else is by DENY
	}{
		{"a caller", securityv1beta1.AuthorizationPolicy_ALLOW, &securityv1beta1.Rule{From: source}, true},
		{"a request", securityv1beta1.AuthorizationPolicy_ALLOW, &securityv1beta1.Rule{From: source, To: operation(&securityv1beta1.Operation{
			Methods: []string{"POST"}, Paths: []string{"/grpc.health.v1.Health/{*}"}, Hosts: []string{"echo*"},
		})}, true},
		{"another request", securityv1beta1.AuthorizationPolicy_ALLOW, &securityv1beta1.Rule{From: source, To: operation(&securityv1beta1.Operation{
			Paths: []string{"/grpc.health.v1.Health/{*}/{**}"},
		})}, false},
		{"what the library ignores", securityv1beta1.AuthorizationPolicy_ALLOW, &securityv1beta1.Rule{From: source, When: sni}, false},
		{"a denied caller", securityv1beta1.AuthorizationPolicy_DENY, &securityv1beta1.Rule{From: source}, false},
		{"a denied caller, by what the library ignores", securityv1beta1.AuthorizationPolicy_DENY, &securityv1beta1.Rule{From: source, When: sni}, false},
	} {
		w.putOne(model.AuthorizationPolicy, "echo", &securityv1beta1.AuthorizationPolicy{Action: tc.action, Rules: []*securityv1beta1.Rule{tc.rule}})
		if tc.serves {
			client.calls(wireID("client"))
		} else {
			denied(client)
		}
		if tc.action == securityv1beta1.AuthorizationPolicy_ALLOW {
			denied(other)
		} else {
			other.calls(wireID("other"))
		}
		if t.Failed() {
			t.Fatal(tc.name)
		}
		w.putOne(model.AuthorizationPolicy, "echo", nil)
		client.calls(wireID("client"))
		other.calls(wireID("other"))
	}
	if mode := server.mode(); mode != connectivity.ServingModeServing {
		t.Errorf("the server is %s", mode)
	}
}
