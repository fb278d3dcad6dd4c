// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"fmt"
	"path/filepath"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	metav1alpha1 "istio.io/api/meta/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// condition returns the status and message of a condition of an object in the store.
func (s *Server) condition(key model.Key, kind string) string {
	c := s.objects.store.Get(key)
	if c == nil {
		return ""
	}
	status, _ := c.Status.(*metav1alpha1.IstioStatus)
	for _, c := range status.GetConditions() {
		if c.GetType() == kind {
			return c.GetStatus() + " " + c.GetMessage()
		}
	}
	return ""
}

// TestHealthAfterRestart restarts the control plane while a machine is unhealthy. The machine must
// be missing from the endpoints from the first snapshot on, until its agent reports otherwise. A
// status must not cause a push.
func TestHealthAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "1.yaml"): machineFile("21"), filepath.Join(dir, "2.yaml"): machineFile("22")})
	i := newIssuer(t)
	state := filepath.Join(t.TempDir(), "ca")
	start := func(t *testing.T) *Server {
		s := serve(t, func(c *Config) {
			c.ConfigDir, c.StateDir = dir, state
			c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
			c.Callers.Hosts = []string{testHost}
		})
		waitUntil(t, "the first snapshot", s.discovery.Ready)
		return s
	}
	entry := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-21"}
	t.Run("first", func(t *testing.T) {
		s := start(t)
		one := i.stream(t, s, "127.77.63.21")
		one.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "connection refused"}})
		waitUntil(t, "the status contains the report", func() bool { return s.condition(entry, health.ConditionType) == "False connection refused" })
		// The stream has requested listeners but does not acknowledge them.
		waitUntil(t, "the status contains the missing acknowledgment", func() bool {
			return s.condition(entry, "Reconciled") == "False 1 of 1 proxy has not acknowledged it yet"
		})
		s.metric(t, `outrigger_control_config_events_skipped_total{kind="WorkloadEntry"} 3`)
		s.metric(t, `outrigger_control_status_writes_total{result="ok"} 4`)
	})
	t.Run("second", func(t *testing.T) {
		s := start(t)
		client := i.stream(t, s, "127.77.63.99")
		client.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeEndpoint, ResourceNames: endpointNames()})
		if first := <-client.answers; first != "127.77.63.22" {
			t.Fatalf("the first endpoints are %q, want them without the unhealthy machine", first)
		}
		one := i.stream(t, s, "127.77.63.21")
		one.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth})
		client.want(t, "one is healthy", "127.77.63.21 127.77.63.22")
		waitUntil(t, "the status contains the new report", func() bool { return s.condition(entry, health.ConditionType) == "True " })
	})
}

func TestStatusOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "1.yaml"): machineFile("21")})
	i := newIssuer(t)
	s := serve(t, func(c *Config) {
		c.ConfigDir = dir
		c.Callers.JWTRule = fmt.Sprintf(`{"issuer":"tests","audiences":["istio-ca"],"jwksUri":%q}`, i.url+"/keys")
		c.Callers.Hosts = []string{testHost}
		c.Status.On = false
	})
	waitUntil(t, "the first snapshot", s.discovery.Ready)
	one := i.stream(t, s, "127.77.63.21")
	one.send(t, &discoveryv3.DiscoveryRequest{TypeUrl: typeHealth, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "connection refused"}})
	entry := model.Key{Kind: model.WorkloadEntry, Namespace: "shop", Name: "web-21"}
	waitUntil(t, "health is still written", func() bool { return s.condition(entry, health.ConditionType) != "" })
	if got := s.condition(entry, "Reconciled"); got != "" {
		t.Errorf("with PILOT_ENABLE_STATUS=false the status is %q, want none", got)
	}
}
