// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"encoding/json"
	"net"
	"slices"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/jwks"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// logServer receives the access logs that an agent receives.
type logServer struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	paths chan string // "<log> <path>"
}

func (s *logServer) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	name := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.GetIdentifier() != nil {
			name = m.GetIdentifier().GetLogName()
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			s.paths <- name + " " + e.GetRequest().GetPath()
		}
	}
}

// TestEnvoyReportsUnknownKeys sends tokens through the real Envoy. It reports those whose key may be
// a newer one of their issuer, and no others.
func TestEnvoyReportsUnknownKeys(t *testing.T) {
	t.Parallel()
	const address = "127.77.63.3"
	s := newTokens(t)
	unknown := s.a
	unknown.Key = jose.JSONWebKey{Key: s.a.Key.(jose.JSONWebKey).Key, KeyID: "newer"}
	expires := time.Now().Add(24 * time.Hour).Unix()
	s.values["<unknown>"] = sign(t, unknown, map[string]any{"iss": issuerA, "sub": "ann", "exp": expires})
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(s.values["KEYS_A"]), &set); err != nil {
		t.Fatal(err)
	}
	keys := jwks.NewSets(map[jwks.Source]jwks.Keys{{Issuer: issuerA}: {List: []string{string(set.Keys[0])}}})
	const requests = `
		200 GET /ann | Authorization: Bearer <ann>
		401 GET /expired | Authorization: Bearer <expired>
		401 GET /foreign | Authorization: Bearer <foreign>
		401 GET /malformed | Authorization: Bearer x.y.z
		200 GET /none
		401 GET /changed | Authorization: Bearer <changed>
		401 GET /unknown | Authorization: Bearer <unknown>
	`
	v := s.in([]verdict{{"fetched keys", tokenRules("one", `{issuer: "`+issuerA+`"}`), requests}, {"inline keys", tokenRules("one", ruleA), requests}, {"another agent", tokenRules("one", `{issuer: "`+issuerA+`"}`), requests}})

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	logs := &logServer{paths: make(chan string, 100)}
	server := grpc.NewServer()
	accesslogv3.RegisterAccessLogServiceServer(server, logs)
	go func() { _ = server.Serve(listener) }() // ends with the test
	t.Cleanup(server.Stop)
	agent := []byte(`"clusters":[{"name":"` + node.XDSCluster + `","type":"STATIC","typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
		"@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}}}},"load_assignment":{"cluster_name":"` + node.XDSCluster +
		`","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":` + portOf(t, listener.Addr()) + `}}}}]}]}},`)
	var proxies []guardedProxy
	for _, one := range v {
		proxy := proxyAt(address)
		if one.name != "another agent" {
			proxy.Settings = (model.ProxySettings{ReportsKeys: true}).Keyed()
		}
		proxies = append(proxies, guardedProxy{verdict: one, settings: &snapshot.Input{Mesh: meshconfig.Default(), Keys: keys}, objects: verdictObjects, proxy: proxy, edit: func(bootstrap []byte) []byte {
			return bytes.Replace(bootstrap, []byte(`"clusters":[`), agent, 1)
		}})
	}
	c := newCourtOf(t, address, proxies)
	for _, i := range []int{1, 2, 0} { // those that report nothing first
		c.check(t, i, v[i])
	}
	want := []string{node.UnknownKeyLog + " /changed", node.UnknownKeyLog + " /unknown"}
	var got []string
	for range want {
		select {
		case path := <-logs.paths:
			got = append(got, path)
		case <-time.After(2 * time.Minute):
			t.Fatalf("Envoy reported only %q within 2 minutes", got)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("Envoy reported %q, want %q", got, want)
	}
	if n := len(logs.paths); n > 0 {
		t.Errorf("Envoy reported %d other requests, such as %q", n, <-logs.paths)
	}
}
