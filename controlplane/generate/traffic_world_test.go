// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/decision"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// The headers by which a request is tracked and that control the application.
const (
	idHeader   = "X-Test-Id"
	failHeader = "X-Test-Fail" // "2 503": this status for the first two attempts; "1 reset": the connection is reset
	waitHeader = "X-Test-Wait" // a delay before the response
)

// arrival is a request as an application received it.
type arrival struct {
	backend string
	method  string
	path    string // with the query
	host    string
	header  http.Header
}

// journal records the arrivals by request id.
type journal struct {
	mu       sync.Mutex // guards the fields below
	arrivals map[string][]arrival
	changed  chan struct{} // closed and replaced with every arrival
}

// add records an arrival, and returns the number of arrivals of its request.
func (j *journal) add(id string, a arrival) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.arrivals[id] = append(j.arrivals[id], a)
	close(j.changed)
	j.changed = make(chan struct{})
	return len(j.arrivals[id])
}

// of returns the arrivals of a request so far, and a channel that is closed when there are more.
func (j *journal) of(id string) ([]arrival, chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.arrivals[id]), j.changed
}

// wait returns the arrivals of a request once there are at least n.
func (j *journal) wait(t *testing.T, id string, n int) []arrival {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		got, changed := j.of(id)
		if len(got) >= n {
			return got
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Errorf("%d requests arrived, want %d: %v", len(got), n, got)
			return got
		}
	}
}

// serve returns the application with a name.
func (j *journal) serve(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := j.add(r.Header.Get(idHeader), arrival{backend: name, method: r.Method, path: r.URL.RequestURI(), host: r.Host, header: r.Header.Clone()})
		if wait, err := time.ParseDuration(r.Header.Get(waitHeader)); err == nil {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("X-Backend", name)
		w.Header().Set("X-Powered-By", "go")
		if times, how, ok := strings.Cut(r.Header.Get(failHeader), " "); ok {
			if most, err := strconv.Atoi(times); err == nil && n <= most {
				if how == "reset" {
					panic(http.ErrAbortHandler)
				}
				status, err := strconv.Atoi(how)
				if err != nil {
					status = http.StatusNotImplemented
				}
				w.WriteHeader(status)
				return
			}
		}
		_, _ = io.WriteString(w, name) // the client detects missing data
	})
}

// applications are the endpoints of the services of the table, each with plaintext HTTP/1 and
// HTTP/2.
var applications = []string{"a", "b", "one", "p80", "p9090", "grpc", "copy", "copy2", "far", "f0", "f1", "r0", "r1", "r2", "r3"}

// traffic is an Envoy that serves the table of routes.
type traffic struct {
	journal *journal
	client  *http.Client
	proxy   string // address at which the Envoy accepts requests
	// routed computes where the Envoy sends a request.
	routed func(decision.Request) (decision.Routed, error)
}

// newTraffic runs applications on loopback addresses, and an Envoy with the rules before them.
func newTraffic(t *testing.T, address string, vhds bool, rules []routing) *traffic {
	t.Helper()
	w := &traffic{journal: &journal{arrivals: map[string][]arrival{}, changed: make(chan struct{})}}
	ports := map[string]string{}
	for _, name := range applications {
		ports["PORT_"+name] = w.listen(t, name)
	}
	objects := decode(t, regexp.MustCompile(`PORT_\w+`).ReplaceAllStringFunc(trafficServices+hashedServices(), func(s string) string { return ports[s] }))
	for _, r := range rules {
		objects = append(objects, r.decode(t)...)
	}
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	mesh := snapshot.Build(nil, inputOf(objects, settings), model.Change{All: true})
	proxyPort := freePorts(t, address, 1)[0]
	port, err := strconv.ParseUint(proxyPort, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy := proxyAt(address)
	proxy.HTTPProxyPort, proxy.VHDS = uint32(port), vhds
	w.proxy = address + ":" + proxyPort
	if vhds {
		runEnvoy(t, envoytest.Binary(t), serveDelta(t, mesh, proxy), w.proxy)
	} else {
		runEnvoy(t, envoytest.Binary(t), staticBootstrap(t, mesh, proxy), w.proxy)
	}
	w.client = w.through(t, "")
	var mu sync.Mutex // guards envoy
	plain := *proxy
	plain.VHDS = false // the routes are the same
	envoy := decider(t, mesh, &plain)
	routes := New(Config{}).Generate(mesh, &plain, xds.TypeRoute)
	w.routed = func(r decision.Request) (decision.Routed, error) {
		mu.Lock()
		defer mu.Unlock()
		return envoy.Route(r, proxy.HTTPProxyPort, func(name string) *routev3.RouteConfiguration {
			config := &routev3.RouteConfiguration{}
			if r := routes.Get(name); r == nil || r.UnmarshalTo(config) != nil {
				return nil
			}
			return config
		})
	}
	return w
}

// through returns a client that sends to the Envoy, optionally from a local address, and follows
// no redirects.
func (w *traffic) through(t *testing.T, local string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{}
	if local != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy}), DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 8}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// listen runs an application until the test ends, and returns its port.
func (w *traffic) listen(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.55.9:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: upgrades(w.journal.serve(name)), Protocols: protocols, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close() // closes the remaining requests
		if err := <-done; err != http.ErrServerClosed {
			t.Error(err)
		}
	})
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// upgrades serves upgraded connections, such as WebSockets, by echoing the received bytes.
func upgrades(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol := r.Header.Get("Upgrade")
		if protocol == "" {
			next.ServeHTTP(w, r)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = conn.Close() }() // the client detects missing data
		_, _ = fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", protocol)
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
}

// send sends a request. It returns the response, with the body read, and the elapsed time.
func (w *traffic) send(t *testing.T, client *http.Client, method, target string, header http.Header, body string) (*http.Response, string, time.Duration) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // the body is read below
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b), time.Since(began)
}

// headers parses "Name: value; Other: value".
func headers(t *testing.T, text string) http.Header {
	t.Helper()
	h := http.Header{}
	for part := range strings.SplitSeq(text, "; ") {
		if part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, ":")
		if !ok {
			t.Fatalf("%q is no header", part)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return h
}

// checkHeaders compares headers with "Name: value; -Absent; Other: ~part". Multiple values of a
// header are joined with a comma.
func checkHeaders(t *testing.T, what string, got http.Header, want string) {
	t.Helper()
	for part := range strings.SplitSeq(want, "; ") {
		if part == "" {
			continue
		}
		if name, ok := strings.CutPrefix(part, "-"); ok {
			if v, there := got[http.CanonicalHeaderKey(name)]; there {
				t.Errorf("%s: %s is %q, want none", what, name, v)
			}
			continue
		}
		name, value, _ := strings.Cut(part, ":")
		value, have := strings.TrimSpace(value), strings.Join(got.Values(name), ",")
		if inner, ok := strings.CutPrefix(value, "~"); ok {
			if !strings.Contains(have, inner) {
				t.Errorf("%s: %s is %q, want %q in it", what, name, have, inner)
			}
		} else if have != value {
			t.Errorf("%s: %s is %q, want %q", what, name, have, value)
		}
	}
}

// trafficServices are the destinations of the rules in the table.
const trafficServices = `
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.77.55.9, ports: {http: PORT_a}, labels: {version: v1}}
  - {address: 127.77.55.9, ports: {http: PORT_b}, labels: {version: v2}}
---
kind: DestinationRule
metadata: {name: shop, namespace: default}
spec:
  host: shop
  trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}, {name: empty, labels: {version: v9}}]
---
kind: ServiceEntry
metadata: {name: one, namespace: default}
spec:
  hosts: [one.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.55.9, ports: {http: PORT_one}}]
---
kind: ServiceEntry
metadata: {name: ports, namespace: default}
spec:
  hosts: [ports.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9090, name: admin, protocol: HTTP}]
  endpoints: [{address: 127.77.55.9, ports: {http: PORT_p80, admin: PORT_p9090}}]
---
kind: ServiceEntry
metadata: {name: grpc, namespace: default}
spec:
  hosts: [grpc.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 50051, name: grpc, protocol: GRPC}]
  endpoints: [{address: 127.77.55.9, ports: {grpc: PORT_grpc}}]
---
kind: ServiceEntry
metadata: {name: copy, namespace: other}
spec:
  hosts: [copy.other.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.55.9, ports: {http: PORT_copy}}]
---
kind: ServiceEntry
metadata: {name: far, namespace: other}
spec:
  hosts: [far.other.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.55.9, ports: {http: PORT_far}}]
---
kind: ServiceEntry
metadata: {name: random, namespace: default}
spec:
  hosts: [random.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.77.55.9, ports: {http: PORT_f0}}
  - {address: 127.77.55.9, ports: {http: PORT_f1}}
---
kind: DestinationRule
metadata: {name: random, namespace: default}
spec: {host: random, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
---
kind: ServiceEntry
metadata: {name: copy2, namespace: default}
spec:
  hosts: [copy2.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.77.55.9, ports: {http: PORT_copy2}}]
---
kind: ServiceEntry
metadata: {name: flaky, namespace: default}
spec:
  hosts: [flaky.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.77.55.9, ports: {http: PORT_f0}}
  - {address: 127.77.55.9, ports: {http: PORT_f1}}
---
kind: DestinationRule
metadata: {name: flaky, namespace: default}
spec: {host: flaky, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}}
`

// hashedServices returns services of the same four applications, named after the part of a request
// that is hashed.
func hashedServices() string {
	var b strings.Builder
	for name, key := range map[string]string{
		"by-header": "httpHeaderName: x-user", "by-cookie": "httpCookie: {name: sticky, path: /shop, ttl: 60s}",
		"by-session": "httpCookie: {name: session, ttl: 0s}", "by-source": "useSourceIp: true", "by-query": "httpQueryParameterName: user",
	} {
		fmt.Fprintf(&b, `---
kind: ServiceEntry
metadata: {name: %[1]s, namespace: default}
spec:
  hosts: [%[1]s.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.77.55.9, ports: {http: PORT_r0}}
  - {address: 127.77.55.9, ports: {http: PORT_r1}}
  - {address: 127.77.55.9, ports: {http: PORT_r2}}
  - {address: 127.77.55.9, ports: {http: PORT_r3}}
---
kind: DestinationRule
metadata: {name: %[1]s, namespace: default}
spec: {host: %[1]s, trafficPolicy: {loadBalancer: {consistentHash: {%[2]s}}}}
`, name, key)
	}
	return b.String()
}
