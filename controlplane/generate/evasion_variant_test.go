// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// variant is a policy with the rule of an evasion.
type variant struct {
	name, objects string
	// refuses is true for a policy whose rule matches what is refused.
	refuses bool
	asks    bool   // an authorizer
	header  string // that is added to each request
}

// variants returns policies that allow, deny, and ask an authorizer that refuses everything, with few
// rules and with many. Besides, it returns policies that allow and deny the requests of the rule with
// a certain token, which is sent with each request.
func (e evasion) variants(t *testing.T, tokens *tokens, authorizer *refuser) []variant {
	t.Helper()
	const header = " | Authorization: Bearer <claims>"
	with := func(spec string, objects ...string) string {
		return documents(append([]string{policy("p", spec)}, objects...)...)
	}
	many := e.rule + ", " + manyRules
	if e.readsTokens() {
		issuer := tokens.replace(tokenRules("one", ruleA+", "+ruleB))
		return []variant{
			{name: "ALLOW", objects: with("{rules: ["+e.rule+"]}", issuer)},
			{name: "DENY", objects: with("{action: DENY, rules: ["+e.rule+"]}", issuer), refuses: true},
			{name: "ALLOW, many rules", objects: with("{rules: ["+many+"]}", issuer)},
			{name: "DENY, many rules", objects: with("{action: DENY, rules: ["+many+"]}", issuer), refuses: true},
		}
	}
	issuer := tokens.replace(tokenRules("one", ruleA))
	return []variant{
		{name: "ALLOW", objects: with("{rules: [" + e.rule + "]}")},
		{name: "DENY", objects: with("{action: DENY, rules: [" + e.rule + "]}"), refuses: true},
		{name: "ALLOW, many rules", objects: with("{rules: [" + many + "]}")},
		{name: "DENY, many rules", objects: with("{action: DENY, rules: [" + many + "]}"), refuses: true},
		{name: "CUSTOM over HTTP", objects: with("{action: CUSTOM, provider: {name: web}, rules: ["+e.rule+"]}", authorizer.services), refuses: true, asks: true},
		{name: "CUSTOM over gRPC", objects: with("{action: CUSTOM, provider: {name: grpc}, rules: ["+many+"]}", authorizer.services), refuses: true, asks: true},
		{name: "ALLOW with a token", objects: with("{rules: ["+withToken(t, e.rule)+"]}", issuer), header: header},
		{name: "DENY with a token", objects: with("{action: DENY, rules: ["+withToken(t, e.rule)+", "+manyRules+"]}", issuer), refuses: true, header: header},
	}
}

// readsTokens reports whether the rule depends on tokens.
func (e evasion) readsTokens() bool {
	return strings.Contains(e.rule, "equestPrincipals") || strings.Contains(e.rule, "request.auth.")
}

// withToken returns a rule that only matches requests with the token <claims>, besides.
func withToken(t *testing.T, rule string) string {
	t.Helper()
	spec := decode(t, policy("p", "{rules: ["+rule+"]}"))[0].Spec.(*securityv1beta1.AuthorizationPolicy)
	r := spec.GetRules()[0]
	if len(r.GetFrom()) == 0 {
		r.From = []*securityv1beta1.Rule_From{{Source: &securityv1beta1.Source{}}}
	}
	for _, from := range r.GetFrom() {
		from.Source.RequestPrincipals = []string{issuerA + "/ann"}
	}
	r.When = append(r.When, &securityv1beta1.Condition{Key: "request.auth.claims[groups]", Values: []string{"ops"}})
	b, err := protojson.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// refuser is an external authorizer over HTTP, and one over gRPC, that refuse everything that they
// are asked about.
type refuser struct {
	authv3.UnimplementedAuthorizationServer
	providers []*meshv1alpha1.MeshConfig_ExtensionProvider
	services  string // the objects of their services
}

func newRefuser(t *testing.T) *refuser {
	t.Helper()
	listen := func() (net.Listener, uint32) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l, uint32(numberOf(t, portOf(t, l.Addr())))
	}
	r := &refuser{}
	web, webPort := listen()
	go refuseRequests(web)
	l, grpcPort := listen()
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	r.providers = []*meshv1alpha1.MeshConfig_ExtensionProvider{
		{Name: "web", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp{
			EnvoyExtAuthzHttp: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider{Service: "web.example.com", Port: webPort},
		}},
		{Name: "grpc", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: "grpc.example.com", Port: grpcPort},
		}},
	}
	r.services = documents(authorizerEntry("web", "HTTP", strconv.Itoa(int(webPort))), authorizerEntry("grpc", "GRPC", strconv.Itoa(int(grpcPort))))
	return r
}

// refuseRequests answers every request at a listener with 403, also one that is not valid.
func refuseRequests(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			in := bufio.NewReader(conn)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if strings.TrimRight(line, "\r\n") != "" {
					continue // authorizers are asked without a body
				}
				if _, err := io.WriteString(conn, "HTTP/1.1 "+strconv.Itoa(http.StatusForbidden)+" Forbidden\r\nContent-Length: 0\r\n\r\n"); err != nil {
					return
				}
			}
		}()
	}
}

// Check is the authorizer over gRPC.
func (*refuser) Check(context.Context, *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	return &authv3.CheckResponse{Status: &statuspb.Status{Code: int32(codes.PermissionDenied)}}, nil
}
