// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func nodeWith(t *testing.T, meta map[string]any) *corev3.Node {
	t.Helper()
	md, err := structpb.NewStruct(meta)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "sidecar~127.77.62.104~web.shop~shop.svc.cluster.local", Metadata: md}
}

func TestProxySettings(t *testing.T) {
	t.Parallel()
	read := func(meta map[string]any) *model.ProxySettings {
		t.Helper()
		p, err := proxyOf(nodeWith(t, meta))
		if err != nil {
			t.Fatal(err)
		}
		return p.Settings
	}
	if s := read(nil); s != nil {
		t.Errorf("nothing is %+v", s)
	}
	s := read(map[string]any{"PROXY_CONFIG": map[string]any{"concurrency": 2.0, "ofTheFuture": map[string]any{"a": "b"}}})
	if s == nil || !s.Configured || s.Key != "" {
		t.Errorf("a ProxyConfig without anything for here is %+v", s)
	}
	all := map[string]any{
		"HTTP10": "1", "DENIED_BY_HEADER": "1", "IDLE_TIMEOUT": "90s", "UNPRIVILEGED_POD": "true", "INBOUND_LISTENER_EXACT_BALANCE": "true", "OUTBOUND_LISTENER_EXACT_BALANCE": true,
		"PROXY_CONFIG": map[string]any{
			"gatewayTopology": map[string]any{"numTrustedProxies": 2.0, "forwardClientCertDetails": "APPEND_FORWARD", "proxyProtocol": map[string]any{}},
			"proxyHeaders":    map[string]any{"server": map[string]any{"disabled": true}, "of_the_future": map[string]any{}},
		},
	}
	s = read(all)
	if !s.HTTP10 || !s.DeniedBy || s.IdleTimeout.Seconds() != 90 || !s.Unprivileged || !s.InboundBalance || !s.OutboundBalance ||
		s.Topology.GetNumTrustedProxies() != 2 || s.Topology.GetProxyProtocol() == nil || !s.Headers.GetServer().GetDisabled().GetValue() {
		t.Errorf("got %+v", s)
	}
	if again := read(all); again.Key != s.Key || s.Key == "" {
		t.Errorf("equal settings have the keys %q and %q", s.Key, again.Key)
	}
	if s.Recorded() != nil || !s.Changes() {
		t.Errorf("requests are recorded: %q; listeners change: %t", s.Recorded(), s.Changes())
	}
	records := read(map[string]any{"RECORDS": ":method,X-Team,:path,a b," + strings.Repeat("x", 200) + strings.Repeat(",y", 100)})
	if got := records.Recorded(); len(got) != 32 || got[0] != ":method" || got[1] != "x-team" || got[2] != "y" || records.Key == "" || records.Changes() {
		t.Errorf("the headers %q are recorded, with the key %q", got, records.Key)
	}
	all["HTTP10"] = "0"
	if other := read(all); other.Key == s.Key || other.HTTP10 {
		t.Errorf("other settings have the key %q", other.Key)
	}
}

func TestBadProxySettings(t *testing.T) {
	t.Parallel()
	config := func(fields map[string]any) map[string]any { return map[string]any{"PROXY_CONFIG": fields} }
	for says, meta := range map[string]map[string]any{
		`IDLE_TIMEOUT is "5"; it must be a duration`:               {"IDLE_TIMEOUT": "5"},
		`IDLE_TIMEOUT is "-5s"`:                                    {"IDLE_TIMEOUT": "-5s"},
		`UNPRIVILEGED_POD is "perhaps"`:                            {"UNPRIVILEGED_POD": "perhaps"},
		`INBOUND_LISTENER_EXACT_BALANCE`:                           {"INBOUND_LISTENER_EXACT_BALANCE": "perhaps"},
		"PROXY_CONFIG is not a JSON object":                        {"PROXY_CONFIG": "a"},
		"PROXY_CONFIG: field gatewayTopology":                      config(map[string]any{"gatewayTopology": 1.0}),
		"PROXY_CONFIG: field gatewayTopology.forwardClientCertDet": config(map[string]any{"gatewayTopology": map[string]any{"forwardClientCertDetails": "SOME"}}),
		"PROXY_CONFIG: field proxyHeaders":                         config(map[string]any{"proxyHeaders": map[string]any{"server": "x"}}),
	} {
		_, err := proxyOf(nodeWith(t, meta))
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "web.shop") {
			t.Errorf("got %v, want an error with %q", err, says)
		}
	}
}

// Names of stats end with a semicolon for the agents that split them there.
func TestDelimitedStats(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meta node.Metadata
		want bool
	}{
		"nothing":                 {node.Metadata{}, false},
		"says so":                 {node.Metadata{DelimitedStats: true}, true},
		"says so in an old image": {node.Metadata{DelimitedStats: true, IstioVersion: "1.18.0"}, true},
		"1.18":                    {node.Metadata{IstioVersion: "1.18.7"}, false},
		"1.22":                    {node.Metadata{IstioVersion: "1.22-alpha.5"}, false},
		"1.23":                    {node.Metadata{IstioVersion: "1.23"}, true},
		"1.30":                    {node.Metadata{IstioVersion: "1.30.3-distroless"}, true},
		"2.0":                     {node.Metadata{IstioVersion: "2.0.0"}, true},
		"a development build":     {node.Metadata{IstioVersion: "master-2026-08-22"}, true},
		"another":                 {node.Metadata{IstioVersion: "a.b.c"}, true},
		"gRPC":                    {node.Metadata{IstioVersion: "1.30.3", Generator: "grpc"}, false},
	} {
		s, err := settingsOf(&tc.meta)
		if err != nil || s.DelimitsStats() != tc.want {
			t.Errorf("%s: %t, %v", name, s.DelimitsStats(), err)
		}
	}
}
