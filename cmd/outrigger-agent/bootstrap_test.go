// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3" // the types in a bootstrap
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestProxyTemplate checks that a real Envoy becomes ready with a bootstrap from a template.
func TestProxyTemplate(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("../../bootstrap/testdata/templates/usual.json.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	marked := filepath.Join(t.TempDir(), "marked.json.tmpl")
	if err := os.WriteFile(marked, []byte(strings.Replace(string(text), `"node": {`, `"node": {"user_agent_name": "marked", `, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, "127.78.0.10", "", newControlPlane(t), "ISTIO_BOOTSTRAP="+marked)
	a.waitReady()
	if code, body := a.get(15000, "/server_info"); code != http.StatusOK || !strings.Contains(body, `"marked"`) {
		t.Errorf("/server_info: got %d %s, want 200 with \"marked\"", code, body)
	}
}

// TestProxyBootstrapOfControlPlane checks that Envoy starts with the bootstrap, or the patches of one,
// that the control plane sends, and without it if Envoy refuses it or the control plane does not answer.
func TestProxyBootstrapOfControlPlane(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, address string, answer proto.Message) *runningAgent {
		cp := newControlPlane(t)
		if answer != nil {
			packed, err := anypb.New(answer)
			if err != nil {
				t.Fatal(err)
			}
			cp.resources = map[string][]*discoveryv3.Resource{"type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap": {{Resource: packed}}}
		}
		a := startAgent(t, address, "", cp, "BOOTSTRAP_XDS_AGENT=true")
		a.waitReady()
		return a
	}
	check := func(t *testing.T, a *runningAgent, marked bool, says string) {
		code, body := a.get(15000, "/server_info")
		if code != http.StatusOK || strings.Contains(body, `"marked"`) != marked {
			t.Errorf("/server_info: got %d %s, want it to be patched: %t", code, body, marked)
		}
		if got := strings.Contains(a.out.String(), "without"); got != (says != "") || !strings.Contains(a.out.String(), says) {
			t.Errorf("the log does not say %q, or says so without a reason", says)
		}
	}
	patch := func(t *testing.T, text string) proto.Message {
		s := &structpb.Struct{}
		if err := protojson.Unmarshal([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	t.Run("answers", func(t *testing.T) {
		t.Parallel()
		a := start(t, "127.78.0.11", patch(t, `{"node": {"user_agent_name": "marked"}}`))
		check(t, a, true, "")
		text, err := os.ReadFile(filepath.Join(a.dir, "etc/istio/proxy/envoy-rev.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := a.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-a.ended
		whole := &bootstrapv3.Bootstrap{}
		if err := protojson.Unmarshal(text, whole); err != nil {
			t.Fatal(err)
		}
		whole.Node.UserAgentName = "marked"
		check(t, start(t, "127.78.0.11", whole), true, "")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		a := start(t, "127.78.0.12", patch(t, `{"node": {"user_agent_name": "marked"}, "static_resources": {"clusters": [{"name": "x", "connect_timeout": "-1s"}]}}`))
		check(t, a, false, "envoy refuses the bootstrap of the control plane and starts without it")
	})
	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		check(t, start(t, "127.78.0.13", nil), false, "envoy starts without the bootstrap of the control plane")
	})
}
