// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// routedMesh has a route for each kind of match. The responses are the names of the routes.
const routedMesh = `
kind: VirtualService
metadata: {name: all, namespace: default}
spec:
  hosts: [shop.example, "*.shop.example", "*.example"]
  http:
  - {name: exact, match: [{uri: {exact: /items}}], directResponse: {status: 200, body: {string: exact}}}
  - {name: folded, match: [{uri: {prefix: /Cart}, ignoreUriCase: true}], directResponse: {status: 200, body: {string: folded}}}
  - {name: regex, match: [{uri: {regex: "/v[0-9]+/.*"}}], directResponse: {status: 200, body: {string: regex}}}
  - {name: header, match: [{uri: {prefix: /h}, headers: {x-team: {exact: red}}}], directResponse: {status: 200, body: {string: header}}}
  - {name: prefix, match: [{headers: {x-team: {prefix: bl}}}], directResponse: {status: 200, body: {string: prefix}}}
  - {name: pattern, match: [{headers: {x-team: {regex: "gr[ae]y"}}}], directResponse: {status: 200, body: {string: pattern}}}
  - {name: present, match: [{uri: {prefix: /p}, headers: {x-other: {}}}], directResponse: {status: 200, body: {string: present}}}
  - {name: without, match: [{uri: {prefix: /w}, withoutHeaders: {x-team: {exact: red}}}], directResponse: {status: 200, body: {string: without}}}
  - {name: absent, match: [{uri: {prefix: /a}, withoutHeaders: {x-other: {}}}], directResponse: {status: 200, body: {string: absent}}}
  - {name: method, match: [{uri: {prefix: /m}, method: {exact: PUT}}], directResponse: {status: 200, body: {string: method}}}
  - {name: authority, match: [{uri: {prefix: /o}, authority: {prefix: a.}}], directResponse: {status: 200, body: {string: authority}}}
  - {name: query, match: [{queryParams: {q: {exact: "1"}}}], directResponse: {status: 200, body: {string: query}}}
  - {name: query-regex, match: [{queryParams: {q: {regex: "[a-f]+"}}}], directResponse: {status: 200, body: {string: query-regex}}}
  - {name: either, match: [{uri: {exact: /one}}, {uri: {exact: /two}}], directResponse: {status: 200, body: {string: either}}}
  - {name: away, match: [{uri: {prefix: /away}}], redirect: {uri: /there, redirectCode: 302}}
  - {name: rest, match: [{uri: {prefix: /r}}], directResponse: {status: 200, body: {string: rest}}}
---
kind: VirtualService
metadata: {name: one, namespace: default}
spec:
  hosts: [one.shop.example]
  http:
  - {name: only, directResponse: {status: 200, body: {string: only}}}
`

// TestRouted checks that the route that is computed for random requests is the one that the real Envoy
// chooses.
func TestRouted(t *testing.T) {
	t.Parallel()
	const address = "127.81.0.7"
	binary := envoytest.Binary(t)
	port := freePorts(t, address, 1)[0]
	mesh := snapshot.Build(nil, inputOf(decode(t, routedMesh), meshconfig.Default()), model.Change{All: true})
	proxy := proxyAt(address)
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HTTPProxyPort = uint32(number)
	runEnvoy(t, binary, staticBootstrap(t, mesh, proxy), address+":"+port)

	g := New(Config{})
	envoy := decider(t, mesh, proxy)
	routes := func(name string) *routev3.RouteConfiguration {
		config := &routev3.RouteConfiguration{}
		if r := g.Generate(mesh, proxy, xds.TypeRoute).Get(name); r == nil || r.UnmarshalTo(config) != nil {
			return nil
		}
		return config
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the requests are the same in each run
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	seen := map[string]int{}
	for range 2000 {
		q := decision.Request{
			Server: netip.MustParseAddr("240.1.2.3"), Port: 80, Method: one("GET", "GET", "PUT"),
			Host: one("shop.example", "SHOP.example", "a.shop.example", "one.shop.example", "x.one.shop.example", "a.example", "example", "other.test", "shop.example:80"),
			Path: one("/items", "/items/", "/Items", "/cart", "/CART/1", "/v1/x", "/v/x", "/h", "/p", "/w", "/a", "/m", "/o", "/one", "/two", "/three", "/away", "/r", "/", "//items", "/x/../items", "/i%74ems") +
				one("", "", "", "?q=1", "?q=2&q=1", "?q=%31", "?q=abc", "?x=1&q=1", "?q", "?q=1#x"),
			Header: map[string][]string{},
		}
		req := &http.Request{Method: q.Method, Host: q.Host, Header: http.Header{}, URL: &url.URL{Scheme: "http", Host: address + ":" + port, Opaque: q.Path}}
		for _, name := range []string{"x-team", "x-other"} {
			if value := one("", "", "red", "blue", "grey", "greyer"); value != "" {
				q.Header[name] = []string{value}
				req.Header.Set(name, value)
			}
		}
		if strings.HasPrefix(q.Path, "//") {
			continue // a client writes it as a host
		}
		resp, err := client.Do(req.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close() // it has been read
		if err != nil {
			t.Fatal(err)
		}
		got, err := envoy.Route(q, proxy.HTTPProxyPort, routes)
		if err != nil {
			t.Fatal(err)
		}
		want := string(body)
		switch {
		case resp.StatusCode == http.StatusFound:
			want = "away"
		case resp.StatusCode == http.StatusBadGateway:
			want = "allow_any" // the host does not exist
		case resp.StatusCode != http.StatusOK:
			want = ""
		}
		if got.Route != want {
			t.Errorf("%s %s, host %s, header %v: computed the route %q (%+v), and Envoy chooses %q (%d)", q.Method, q.Path, q.Host, q.Header, got.Route, got, want, resp.StatusCode)
		}
		seen[want]++
	}
	for _, name := range []string{"exact", "folded", "regex", "header", "prefix", "pattern", "present", "without", "absent", "method", "authority", "query", "query-regex", "either", "away", "rest", "only", "allow_any", ""} {
		if seen[name] == 0 {
			t.Errorf("no request had the route %q: %v", name, seen)
		}
	}
}

// TestRoutedGateway checks that the response that is computed for requests to a gateway is that of the real
// Envoy.
func TestRoutedGateway(t *testing.T) {
	t.Parallel()
	const address = "127.81.0.8"
	binary := envoytest.Binary(t)
	ports := freePorts(t, address, 2)
	mesh := snapshot.Build(nil, inputOf(decode(t, strings.NewReplacer("PORT_HTTP", ports[0], "PORT_MOVED", ports[1]).Replace(`
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: PORT_HTTP, name: http, protocol: HTTP}, hosts: [shop.example, "other/hidden.example", "*.wild.example"]}
  - {port: {number: PORT_MOVED, name: http, protocol: HTTP}, tls: {httpsRedirect: true}, hosts: [shop.example]}
---
kind: VirtualService
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.example, hidden.example, a.wild.example]
  gateways: [edge]
  http:
  - {match: [{uri: {exact: /items}}], directResponse: {status: 207}}
  - {match: [{headers: {x-team: {exact: red}}}], directResponse: {status: 202}}
  - {match: [{queryParams: {q: {exact: "1"}}}], directResponse: {status: 203}}
  - {match: [{uri: {prefix: /gone}}], route: [{destination: {host: gone.example}}]}
`)), meshconfig.Default()), model.Change{All: true})
	proxy := &model.Proxy{ID: "edge.default", Role: "router", IPs: []string{address}, Namespace: "default", Labels: map[string]string{"app": "edge"}}
	runEnvoy(t, binary, staticBootstrap(t, mesh, proxy), address+":"+ports[0])
	g, envoy := New(Config{}), decider(t, mesh, proxy)
	routes := func(name string) *routev3.RouteConfiguration {
		config := &routev3.RouteConfiguration{}
		if r := g.Generate(mesh, proxy, xds.TypeRoute).Get(name); r == nil || r.UnmarshalTo(config) != nil {
			return nil
		}
		return config
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	seen := map[int]bool{}
	for _, port := range ports {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"shop.example", "shop.example:" + port, "hidden.example", "a.wild.example", "b.wild.example", "other.example"} {
			for _, path := range []string{"/items", "/items/", "/?q=1", "/?q=2", "/gone/x"} {
				for _, team := range []string{"", "red", "Red"} {
					q := decision.Request{Server: netip.MustParseAddr(address), Port: uint32(number), Method: "GET", Host: host, Path: path, Header: map[string][]string{}}
					req := &http.Request{Method: "GET", Host: host, Header: http.Header{}, URL: &url.URL{Scheme: "http", Host: address + ":" + port, Opaque: path}}
					if team != "" {
						q.Header["x-team"] = []string{team}
						req.Header.Set("X-Team", team)
					}
					resp, err := client.Do(req.WithContext(t.Context()))
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close() // only the status counts
					got, err := envoy.Route(q, 0, routes)
					if err != nil {
						t.Fatal(err)
					}
					status := int(got.Status)
					if len(got.Clusters) > 0 {
						status = http.StatusServiceUnavailable // there is no such cluster
					}
					if status != resp.StatusCode || got.Location != resp.Header.Get("Location") {
						t.Errorf("port %s, host %s, %s, x-team %q: computed %d %s (%s), want %d %s", port, host, path, team, status, got.Location, got.Reason, resp.StatusCode, resp.Header.Get("Location"))
					}
					seen[status] = true
				}
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("responses %v, want six", seen)
	}
	conn, err := net.Dial("tcp", address+":"+ports[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the response is read
	if _, err := conn.Write([]byte("\x16\x03\x01\x00\x05hello")); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	number, _ := strconv.Atoi(ports[0]) // it was one above
	got, routeErr := envoy.Route(decision.Request{Server: netip.MustParseAddr(address), Port: uint32(number), Method: "GET", Host: "shop.example", Path: "/", SNI: "shop.example", TLS: true}, 0, routes)
	if err != nil || routeErr != nil || got.Status != 400 || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("TLS to a port for HTTP: got %q, computed %+v, %v, %v", answer, got, err, routeErr)
	}
}
