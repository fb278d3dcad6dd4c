// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// sessions are services with persistent sessions. ENDPOINTS are three applications, of which the last
// one is draining.
const sessions = `
kind: ServiceEntry
metadata: {name: cart, namespace: default, labels: {istio.io/persistent-session: cart}}
spec:
  hosts: [cart.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [ENDPOINTS]
---
kind: ServiceEntry
metadata: {name: api, namespace: default, labels: {istio.io/persistent-session-header: x-session}}
spec:
  hosts: [api.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [ENDPOINTS]
`

// TestEnvoySessions checks that the requests of a client reach the endpoint of its first one, also when
// the endpoint is draining, and that those of new clients reach all others.
func TestEnvoySessions(t *testing.T) {
	t.Parallel()
	const address = "127.77.56.97"
	ports := []string{backend(t, "one"), backend(t, "two"), backend(t, "three")}
	objects := func(draining int) string {
		var list []string
		for i, port := range ports {
			labels := ""
			if i == draining {
				labels = `, labels: {istio.io/draining: "true"}`
			}
			list = append(list, "{address: 127.0.0.1, ports: {http: "+port+"}"+labels+"}")
		}
		return strings.ReplaceAll(sessions, "ENDPOINTS", strings.Join(list, ", "))
	}
	type session struct{ endpoint, header string }
	ask := func(b *balancing, host, header string) session {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if name, value, ok := strings.Cut(header, ": "); ok {
			req.Header.Set(name, value)
		}
		resp, err := b.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // the body is read below
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", host, resp.Status, err)
		}
		for _, c := range resp.Cookies() {
			header = "Cookie: " + c.Name + "=" + c.Value
		}
		if h := resp.Header.Get("x-session"); h != "" {
			header = "x-session: " + h
		}
		endpoint, _, _ := strings.Cut(string(body), " ")
		return session{endpoint, header}
	}
	g := New(Config{Sessions: true})
	before, after := newBalancingOf(t, g, address, objects(-1), nil), newBalancingOf(t, g, address, objects(2), nil)
	for _, host := range []string{"cart.example.com", "api.example.com"} {
		kept := map[string]session{}
		for range 30 {
			s := ask(before, host, "")
			kept[s.endpoint] = s
		}
		if len(kept) != 3 {
			t.Fatalf("%s: clients without a session reach %d endpoints, want 3", host, len(kept))
		}
		for _, s := range kept {
			for range 10 {
				for name, b := range map[string]*balancing{"before": before, "after": after} {
					if got := ask(b, host, s.header).endpoint; got != s.endpoint {
						t.Fatalf("%s, %s an endpoint drains: %q reaches %s, want %s", host, name, s.header, got, s.endpoint)
					}
				}
			}
		}
		for range 30 {
			if s := ask(after, host, ""); s.endpoint == "three" {
				t.Fatalf("%s: a new client reaches the endpoint that is draining", host)
			}
		}
	}
}
