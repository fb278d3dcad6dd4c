// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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

// pastClient is a service with one workload.
const pastClient = `apiVersion: networking.istio.io/v1
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
`

// servePast returns a control plane of a directory to which the workload of pastClient is connected, and
// which knows its first objects.
func servePast(t *testing.T, dir string, set func(*Config)) *Server {
	t.Helper()
	write(t, map[string][]byte{filepath.Join(dir, "client.yaml"): []byte(pastClient)})
	s := serve(t, func(c *Config) {
		c.ConfigDir, c.Listen.Plaintext, c.Status.On = dir, testHost+":0", false
		set(c)
	})
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
	waitFor(t, "the ServiceEntry is recorded", func() bool { return len(s.pastOf(t, url.Values{"name": {"client"}}).Versions) == 1 })
	return s
}

// pastOf returns the history of some objects.
func (s *Server) pastOf(t *testing.T, fields url.Values) (h report.History) {
	t.Helper()
	s.debugAnswer(t, "history", fields, &h)
	return h
}

// allows reports whether a request of no identity to the workload of pastClient is allowed, at a time
// or, if it is zero, now.
func (s *Server) allows(t *testing.T, path string, at time.Time) bool {
	t.Helper()
	request := url.Values{"from": {"none"}, "to": {"client.shop"}, "port": {"8080"}, "path": {path}}
	if !at.IsZero() {
		request.Set("at", at.Format(time.RFC3339Nano))
	}
	var d report.Decision
	code, _ := s.debugAnswer(t, "request", request, &d)
	return code == http.StatusOK && d.Allowed
}

// TestPast checks that a control plane decides about a request as it would have before a change,
// and that it lists the change.
func TestPast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	denied := filepath.Join(t.TempDir(), "denied")
	write(t, map[string][]byte{denied: nil, filepath.Join(dir, "tokens.yaml"): []byte(`apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {jwtRules: [{issuer: "https://issuer.example", jwksUri: "https://127.0.0.1:1/keys"}]}
`)})
	s := servePast(t, dir, func(c *Config) { c.DenyList = denied })
	waitFor(t, "the request is allowed", func() bool { return s.allows(t, "/items", time.Time{}) })
	before := time.Now()
	write(t, map[string][]byte{filepath.Join(dir, "deny.yaml"): []byte(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny-items, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/items]}}]}]}
`)})
	waitFor(t, "the request is denied", func() bool { return !s.allows(t, "/items", time.Time{}) })
	waitFor(t, "the policy is recorded", func() bool { return len(s.pastOf(t, url.Values{"name": {"deny-items"}}).Versions) == 1 })

	if !s.allows(t, "/items", before) {
		t.Error("the request is denied at a time before the policy, want it allowed")
	}
	if s.allows(t, "/items", time.Now()) {
		t.Error("the request is allowed at a time after the policy, want it denied")
	}
	var changes report.Changes
	s.debugAnswer(t, "changes", url.Values{"from": {before.Format(time.RFC3339Nano)}}, &changes)
	if len(changes.Objects) != 1 || changes.Objects[0].Name != "deny-items" || changes.Objects[0].Before != nil || !strings.Contains(string(changes.Objects[0].After.Object), "/items") {
		t.Errorf("changes = %+v, want the new policy", changes.Objects)
	}
	s.explainsPast(t, dir, before)
	s.saysCurrent(t, denied, before)
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

// saysCurrent checks what the control plane says that answers about the past depend on and that has no
// history: keys, and the deny list once it has changed.
func (s *Server) saysCurrent(t *testing.T, denied string, before time.Time) {
	t.Helper()
	write(t, map[string][]byte{denied: []byte("serial 01\n")})
	waitFor(t, "the deny list is in force", func() bool {
		var r report.Replica
		s.debugAnswer(t, "proxies", nil, &r)
		return r.DenyList != nil && r.DenyList.Entries == 1
	})
	for at, want := range map[time.Time][]string{before: {"the keys of token issuers", "the deny list"}, time.Now(): {"the keys of token issuers"}} {
		var d report.Decision
		if code, body := s.debugAnswer(t, "request", url.Values{"from": {"none"}, "to": {"client.shop"}, "port": {"8080"}, "at": {at.Format(time.RFC3339Nano)}}, &d); !slices.Equal(d.Current, want) {
			t.Errorf("request = %d %s, want that it depends on %q of now", code, body, want)
		}
	}
	for kind, want := range map[string]bool{"RequestAuthentication": true, "Sidecar": false} {
		var o report.Object
		name := map[bool]string{true: "tokens", false: "default"}[want]
		code, body := s.debugAnswer(t, "explain", url.Values{"kind": {kind}, "namespace": {"shop"}, "name": {name}, "at": {before.Format(time.RFC3339Nano)}}, &o)
		if o.Then == nil || len(o.Then.Current) > 0 != want {
			t.Errorf("explain %s = %d %s, want that it depends on keys of now: %t", kind, code, body, want)
		}
	}
}

// explainsPast checks what the control plane says about an object before it existed, about its first
// version, after that was replaced and deleted, and about the objects of a proxy.
func (s *Server) explainsPast(t *testing.T, dir string, before time.Time) {
	t.Helper()
	explain := func(fields url.Values, at time.Time, into any) (int, string) {
		fields.Set("at", at.Format(time.RFC3339Nano))
		return s.debugAnswer(t, "explain", fields, into)
	}
	object := url.Values{"kind": {"AuthorizationPolicy"}, "namespace": {"shop"}, "name": {"deny-items"}}
	versions := func(n int) func() bool {
		return func() bool { return len(s.pastOf(t, url.Values{"name": {"deny-items"}}).Versions) == n }
	}
	exists := time.Now()
	file := filepath.Join(dir, "deny.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, map[string][]byte{file: []byte(strings.Replace(string(text), "/items", "/others", 1))})
	waitFor(t, "the change is recorded", versions(2))
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the deletion is recorded", versions(3))
	var o report.Object
	code, body := explain(object, before, &o)
	if code != http.StatusOK || o.Found || o.Then == nil || o.Then.Version != nil || o.Then.Next == nil || o.Then.Next.Change != report.Created {
		t.Errorf("explain before the policy = %d %s, want that it was created later", code, body)
	}
	o = report.Object{}
	code, body = explain(object, exists, &o)
	if code != http.StatusOK || !o.Found || o.Then == nil || o.Then.Version == nil || !strings.Contains(string(o.Then.Version.Object), "/items") ||
		o.Then.Next == nil || o.Then.Next.Change != report.Updated || o.Source == "" {
		t.Fatalf("explain the first policy = %d %s, want its version and the next one", code, body)
	}
	if len(o.Resources) != 1 || o.Resources[0].Type != "lds" || len(o.Proxies) != 1 || o.Proxies[0] != (report.Standing{Proxy: "client.shop", State: report.Unknown}) {
		t.Errorf("explain the first policy = %s, want a listener of the proxy", body)
	}
	o = report.Object{}
	if code, body = explain(object, time.Now(), &o); code != http.StatusOK || o.Found || o.Then == nil || o.Then.Version != nil || o.Then.Next != nil {
		t.Errorf("explain after the policy = %d %s, want that it does not exist", code, body)
	}
	for at, want := range map[time.Time]bool{before: false, exists: true} {
		var d report.Decided
		code, body := explain(url.Values{"proxyID": {"client.shop"}}, at, &d)
		had := slices.ContainsFunc(d.Objects, func(p report.Part) bool { return p.Name == "deny-items" })
		if code != http.StatusOK || had != want || d.Then == nil || d.Types != nil {
			t.Errorf("explain client.shop = %d %s, want the policy: %v", code, body, want)
		}
	}
	write(t, map[string][]byte{file: []byte("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: converted, namespace: shop}\nspec: {hostnames: [a.example.com]}\n")})
	waitFor(t, "the HTTPRoute is recorded", func() bool { return len(s.pastOf(t, url.Values{"name": {"converted"}}).Versions) == 1 })
	o = report.Object{}
	code, body = explain(object, exists, &o)
	if code != http.StatusOK || !o.Found || o.Then == nil || o.Then.Version == nil || o.Then.NoEffect != "" || len(o.Resources) != 1 {
		t.Errorf("explain after a change of the Gateway API = %d %s, want the version with its effect", code, body)
	}
	begin := time.Date(2001, 2, 3, 0, 0, 0, 0, time.UTC)
	if code, body := explain(object, begin, nil); code != http.StatusBadRequest || !strings.Contains(body, "it begins at") {
		t.Errorf("explain before the history = %d %s, want an error", code, body)
	}
}

// TestPastMesh checks that a control plane decides by the mesh config and the networks of then, lists their
// changes, and says since when they are known.
func TestPastMesh(t *testing.T) {
	t.Parallel()
	dir, settings := t.TempDir(), t.TempDir()
	mesh, networks := filepath.Join(settings, "mesh"), filepath.Join(settings, "networks")
	write(t, map[string][]byte{mesh: []byte("accessLogFile: /first\n"), filepath.Join(dir, "deny.yaml"): []byte(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny-items, namespace: mesh}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/items]}}]}]}
`), filepath.Join(dir, "web.yaml"): []byte(shopService), filepath.Join(dir, "far.yaml"): []byte(farMachine)})
	s := servePast(t, dir, func(c *Config) { c.Mesh.File, c.Mesh.NetworksFile = mesh, networks })
	waitFor(t, "the request is allowed", func() bool { return s.allows(t, "/items", time.Time{}) })
	versions := func() (out []string) {
		for _, v := range s.pastOf(t, url.Values{"kind": {"MeshConfig"}}).Versions {
			out = append(out, v.Name+" "+v.Change+" "+v.Source)
		}
		return out
	}
	first := time.Now()
	write(t, map[string][]byte{mesh: []byte("rootNamespace: mesh\n"), networks: []byte("networks: {far: {gateways: [{address: 192.0.2.1, port: 15443}]}}\n")})
	waitFor(t, "the request is denied", func() bool { return !s.allows(t, "/items", time.Time{}) })
	want := []string{"mesh found " + mesh, "mesh updated " + mesh, "meshNetworks created " + networks}
	waitFor(t, "both are recorded", func() bool { return len(versions()) == len(want) })
	if got := versions(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("versions = %q, want %q", got, want)
	}
	if !s.allows(t, "/items", first) {
		t.Error("the request is denied at a time before the change of the mesh config, want it allowed")
	}
	second := time.Now()
	if s.allows(t, "/items", second) {
		t.Error("the request is allowed at a time after the change of the mesh config, want it denied")
	}
	var changes report.Changes
	s.debugAnswer(t, "changes", url.Values{"from": {first.Format(time.RFC3339Nano)}}, &changes)
	if len(changes.Objects) != 2 || !strings.Contains(string(changes.Objects[0].Before.Object), "/first") {
		t.Errorf("changes = %+v, want those of the mesh config and of the networks", changes.Objects)
	}
	for at, want := range map[time.Time]string{first: `"accessLogFile":"/first"`, second: `"rootNamespace":"mesh"`} {
		var o report.Object
		fields := url.Values{"kind": {"MeshConfig"}, "name": {"mesh"}, "at": {at.Format(time.RFC3339Nano)}}
		code, text := s.debugAnswer(t, "explain", fields, &o)
		if code != http.StatusOK || !o.Found || o.Source != mesh || o.Then.NoEffect != "" || !strings.Contains(string(o.Then.Version.Object), want) {
			t.Errorf("explain the mesh config = %d %s, want %s", code, text, want)
		}
	}
	for _, tc := range []struct {
		at   time.Time
		want string
	}{{first, "127.77.62.103:"}, {second, "192.0.2.1:15443"}} {
		var d report.Decision
		fields := url.Values{"from": {"client.shop"}, "to": {"web.shop"}, "at": {tc.at.Format(time.RFC3339Nano)}}
		code, text := s.debugAnswer(t, "request", fields, &d)
		if code != http.StatusOK || d.Client == nil || len(d.Client.Destinations) != 1 || !strings.HasPrefix(strings.Join(d.Client.Destinations[0].Endpoints, " "), tc.want) {
			t.Errorf("the request to a far workload = %d %s, want one to %s", code, text, tc.want)
		}
	}
}
