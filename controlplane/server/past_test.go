// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// debugAnswer sends a debug request, decodes the response, and returns its status code and text.
func (s *Server) debugAnswer(t *testing.T, path string, fields url.Values, into any) (code int, text string) {
	t.Helper()
	resp, err := http.Get("http://" + s.ports.listeners.http.Addr().String() + "/debug/" + path + "?" + fields.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return resp.StatusCode, string(body)
}

// TestPast checks that a control plane decides about a request as it would have before a change,
// and that it lists the change.
func TestPast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, map[string][]byte{filepath.Join(dir, "client.yaml"): []byte(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: client, namespace: shop}
spec:
  hosts: [client.shop.svc.cluster.local]
  resolution: STATIC
  ports: [{number: 80, targetPort: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.62.111}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, defaultEndpoint: 127.0.0.1:8081}]
  egress: [{hosts: ["*/*"]}]
`)})
	s := serve(t, func(c *Config) { c.ConfigDir, c.Listen.Plaintext, c.Status.On = dir, testHost+":0", false })
	waitFor(t, "it is ready", s.discovery.Ready)
	responses := deltaProxy(t, s, []string{"http_proxy"})
	go func() { // the proxy acknowledges everything
		for {
			select {
			case <-responses:
			case <-t.Context().Done():
				return
			}
		}
	}()
	request := url.Values{"from": {"none"}, "to": {"client.shop"}, "port": {"8080"}, "path": {"/items"}}
	allowed := func() bool {
		var d report.Decision
		code, _ := s.debugAnswer(t, "request", request, &d)
		return code == http.StatusOK && d.Allowed
	}
	history := func(name string) (h report.History) {
		s.debugAnswer(t, "history", url.Values{"name": {name}}, &h)
		return h
	}
	waitFor(t, "the request is allowed", allowed)
	waitFor(t, "the ServiceEntry is recorded", func() bool { return len(history("client").Versions) == 1 })
	before := time.Now()
	write(t, map[string][]byte{filepath.Join(dir, "deny.yaml"): []byte(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny-items, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/items]}}]}]}
`)})
	waitFor(t, "the request is denied", func() bool { return !allowed() })
	waitFor(t, "the policy is recorded", func() bool { return len(history("deny-items").Versions) == 1 })

	request.Set("at", before.Format(time.RFC3339Nano))
	if !allowed() {
		t.Error("the request is denied at a time before the policy, want it allowed")
	}
	request.Set("at", time.Now().Format(time.RFC3339Nano))
	if allowed() {
		t.Error("the request is allowed at a time after the policy, want it denied")
	}
	var changes report.Changes
	s.debugAnswer(t, "changes", url.Values{"from": {before.Format(time.RFC3339Nano)}}, &changes)
	if len(changes.Objects) != 1 || changes.Objects[0].Name != "deny-items" || changes.Objects[0].Before != nil || !strings.Contains(string(changes.Objects[0].After.Object), "/items") {
		t.Errorf("changes = %+v, want the new policy", changes.Objects)
	}
	for want, fields := range map[string]url.Values{
		"at=yesterday is not a time": {"at": {"yesterday"}},
		"it begins at":               {"at": {"2001-02-03T04:05:06Z"}},
	} {
		fields.Set("to", "client.shop")
		if code, text := s.debugAnswer(t, "request", fields, nil); code != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("request?%s = %d %s, want an error with %q", fields.Encode(), code, text, want)
		}
	}
	if code, text := s.debugAnswer(t, "changes", url.Values{"from": {"2030-01-01T00:00:00Z"}}, nil); code != http.StatusBadRequest || !strings.Contains(text, "is after to=") {
		t.Errorf("changes from the future = %d %s, want an error", code, text)
	}
}
