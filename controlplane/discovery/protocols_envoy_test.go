// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	configcodec "github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// detection is how long listeners of protocolObjects wait for the first bytes of a client.
const detection = 200 * time.Millisecond

// protocolObjects are a workload with ports of HTTP, TCP and no protocol, and services of HTTP/1.1, HTTP/2
// and no protocol.
const protocolObjects = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: default}
spec:
  hosts: [shop.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 81, targetPort: IN_HTTP, name: http, protocol: HTTP}
  - {number: 82, targetPort: IN_AUTO, name: auto}
  - {number: 83, targetPort: IN_MYSQL, name: mysql, protocol: MySQL}
  - {number: 84, targetPort: IN_GRPC, name: grpc, protocol: GRPC}
  endpoints: [{address: WORKLOAD}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress:
  - {port: {number: IN_HTTP, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:APP"}
  - {port: {number: IN_AUTO, name: auto}, defaultEndpoint: "127.0.0.1:FIRST"}
  - {port: {number: IN_GRPC, protocol: GRPC, name: grpc}, defaultEndpoint: "127.0.0.1:APP2"}
  - {port: {number: IN_MYSQL, protocol: MYSQL, name: mysql}, defaultEndpoint: "127.0.0.1:FIRST"}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one, namespace: default}
spec:
  hosts: [one.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: APP, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: two, namespace: default}
spec:
  hosts: [two.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: APP2, name: grpc, protocol: GRPC}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bounded, namespace: default}
spec:
  hosts: [bounded.default.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: APP2, name: grpc, protocol: GRPC}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: default}
spec:
  hosts: [db.default.svc.cluster.local]
  addresses: [240.0.9.9]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: OUT_TCP, targetPort: FIRST, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: db, namespace: default}
spec: {host: db.default.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {idleTimeout: 0.2s}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: bounded, namespace: default}
spec:
  hosts: [bounded.default.svc.cluster.local]
  http: [{timeout: 0.2s, route: [{destination: {host: bounded.default.svc.cluster.local}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: default}
spec:
  hosts: [one.default.svc.cluster.local]
  http:
  - {match: [{uri: {exact: /slow}}], timeout: 0.2s, route: [{destination: {host: one.default.svc.cluster.local}}]}
  - {match: [{uri: {exact: /tries}}], timeout: 3600s, retries: {attempts: 1, perTryTimeout: 0.1s, retryOn: 5xx}, route: [{destination: {host: one.default.svc.cluster.local}}]}
  - {route: [{destination: {host: one.default.svc.cluster.local}}]}
`

// protocolsWorld is an Envoy of the workload shop with the objects.
type protocolsWorld struct {
	*wireMesh
	ip    string
	ports map[string]string
}

// slow handles requests: those for a path that is not / have no answer, and upgrades are accepted.
func slow(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Upgrade") != "":
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n") // the client checks it
		_ = conn.Close()
	case r.URL.Path != "/":
		<-r.Context().Done()
	}
}

func startProtocols(t *testing.T, ip string) *protocolsWorld {
	t.Helper()
	w := &protocolsWorld{wireMesh: newWireMesh(t, ip), ip: ip, ports: map[string]string{}}
	w.noTLS, w.detection = true, durationpb.New(detection)
	for _, name := range []string{"IN_HTTP", "IN_AUTO", "IN_MYSQL", "IN_GRPC", "OUT_TCP"} {
		port := freePort(t, ip)
		for taken := true; taken; {
			taken = false
			for _, other := range w.ports {
				taken = taken || other == port
			}
			if taken {
				port = freePort(t, ip)
			}
		}
		w.ports[name] = port
	}
	app := httptest.NewServer(http.HandlerFunc(slow))
	t.Cleanup(app.Close)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	h2 := httptest.NewUnstartedServer(http.HandlerFunc(slow))
	h2.Config.Protocols = &protocols
	h2.Start()
	t.Cleanup(h2.Close)
	names := []string{"WORKLOAD", ip, "APP2", portOf(t, h2.Listener.Addr()), "APP", portOf(t, app.Listener.Addr()), "FIRST", portOf(t, serveName(t, "first").Addr())}
	for name, port := range w.ports {
		names = append(names, name, port)
	}
	objects, _ := configcodec.Decode("world", []byte(strings.NewReplacer(names...).Replace(protocolObjects)))
	(&flipsWorld{wireMesh: w.wireMesh}).apply(objects, true)
	w.server.Debug(debug.Config{})
	_ = runWireEnvoy(t, w.wireMesh, "DELTA_GRPC", ip)
	until(t, "Envoy serves", func() bool {
		return w.raw(t, "15080", "GET http://one.default.svc.cluster.local/ HTTP/1.1\r\nHost: one.default.svc.cluster.local\r\n\r\n") == "200"
	})
	return w
}

// raw writes bytes to a port of the workload and returns the status of the answer, or its first word.
func (w *protocolsWorld) raw(t *testing.T, port, text string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(w.ip, port), time.Minute)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(conn, text) // the answer says whether it arrives
	line, err := bufio.NewReader(conn).ReadString('\n')
	parts := strings.Fields(line)
	switch {
	case len(parts) == 0:
		return fmt.Sprint("closed: ", err)
	case strings.HasPrefix(parts[0], "HTTP/"):
		return parts[1]
	}
	return parts[0]
}

// whole returns what a port writes until the connection is closed.
func (w *protocolsWorld) whole(t *testing.T, port string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(w.ip, port), time.Minute)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	text, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// protocolCase is a request that a question describes, and what Envoy answers. The control plane says a part of
// its answer, and the same status if it is an error.
type protocolCase struct {
	name       string
	form       url.Values
	sent       func() string
	want, says string
}

// TestEnvoyProtocols sends requests of other protocols than HTTP/1.1 to the real Envoy and compares what
// happens with what the control plane says.
func TestEnvoyProtocols(t *testing.T) {
	t.Parallel()
	w := startProtocols(t, "127.77.66.2")
	for _, c := range w.cases(t) {
		code, body := postDebug(w.server, "request", c.form)
		var d report.Decision
		if err := json.Unmarshal([]byte(body), &d); code != http.StatusOK || err != nil {
			t.Fatalf("%s: got %d %s", c.name, code, body)
		}
		begin := time.Now()
		got := c.sent()
		took := time.Since(begin)
		if got == "" || !strings.Contains(c.want, got) || !strings.Contains(body, c.says) || !d.Allowed && strconv.Itoa(d.Status) != got {
			t.Errorf("%s: Envoy answers %s, want %s; the control plane lacks %q: %s", c.name, got, c.want, c.says, body)
		}
		if waits := strings.Contains(body, `"wait":`); waits && took < detection/2 {
			t.Errorf("%s: Envoy answers after %s, before it has waited", c.name, took)
		}
	}
	w.acceptOld(t)
}

// cases returns requests through the proxy of the application, and to the workload.
func (w *protocolsWorld) cases(t *testing.T) []protocolCase {
	host := func(name string) string {
		name, port, _ := strings.Cut(name, ":")
		return strings.TrimSuffix(name+".default.svc.cluster.local:"+port, ":")
	}
	through := func(first, name, rest string) string {
		return w.raw(t, "15080", strings.Replace(first, "URL", "http://"+host(name), 1)+"\r\nHost: "+host(name)+"\r\n"+rest+"\r\n")
	}
	to := func(name string, more ...string) url.Values {
		form := url.Values{"from": {"shop-1.default"}, "to": {host(name)}}
		for i := 0; i < len(more); i += 2 {
			form.Add(more[i], more[i+1])
		}
		return form
	}
	in := func(port string, more ...string) url.Values {
		form := to("", more...)
		form["from"], form["to"], form["port"] = []string{"none"}, []string{"shop-1.default"}, []string{w.ports[port]}
		return form
	}
	ws := func(protocol string) string {
		return "Connection: Upgrade\r\nUpgrade: " + protocol + "\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
	}
	inbound := func(port, text string) func() string { return func() string { return w.raw(t, w.ports[port], text) } }
	outbound := func(first, name, rest string) func() string {
		return func() string { return through(first, name, rest) }
	}
	const get, slow, garbage = "GET URL/ HTTP/1.1", "GET URL/slow HTTP/1.1", "\x00\x01\x02\x03\r\n\r\n"
	return []protocolCase{
		{"HTTP/1.1", to("one"), outbound(get, "one", ""), "200", `"allowed":true`},
		{"HTTP/1.0", to("one", "protocol", "http/1.0"), outbound("GET URL/ HTTP/1.0", "one", ""), "426", "PILOT_HTTP10"},
		{"HTTP/1.0 to the workload", in("IN_HTTP", "protocol", "http/1.0"), inbound("IN_HTTP", "GET / HTTP/1.0\r\nHost: a\r\n\r\n"), "426", `"decided_by":"protocol"`},
		{"WebSocket", to("one", "protocol", "websocket"), outbound(get, "one", ws("websocket")), "101", `"allowed":true`},
		{"WebSocket to the workload", in("IN_HTTP", "protocol", "websocket"), inbound("IN_HTTP", "GET / HTTP/1.1\r\nHost: a\r\n"+ws("websocket")+"\r\n"), "101", `"allowed":true`},
		{"another upgrade", to("one", "header", "connection=Upgrade", "header", "upgrade=other"), outbound(get, "one", ws("other")), "403", "upgrade to other"},
		{"another upgrade to the workload", in("IN_HTTP", "header", "upgrade=other"), inbound("IN_HTTP", "GET / HTTP/1.1\r\nHost: a\r\n"+ws("other")+"\r\n"), "403", "upgrade to other"},
		{"an upgrade to h2c", to("one", "header", "connection=Upgrade", "header", "upgrade=h2c"), outbound(get, "one", ws("h2c")), "200", `"allowed":true`},
		{"WebSocket to a server of HTTP/2", to("two", "protocol", "websocket"), outbound(get, "two", ws("websocket")), "502 or 503", "which few servers accept"},
		{"WebSocket to a proxy over HTTP/2", to("shop", "protocol", "websocket", "port", "84"), outbound(get, "shop:84", ws("websocket")), "503", "name the port http"},
		{"the timeout of the route", to("one", "path", "/slow"), outbound(slow, "one", ""), "504", `"timeout":"200ms","timeout_by":"route"`},
		{"the timeout of an attempt", to("one", "path", "/tries"), outbound("GET URL/tries HTTP/1.1", "one", ""), "504", `"timeout":"1h0m0s","timeout_by":"route","timeout_per_try":"100ms"`},
		{"grpc-timeout", to("two", "path", "/slow", "header", "grpc-timeout=200m"), outbound(slow, "two", "grpc-timeout: 200m\r\n"), "504", `"timeout":"200ms","timeout_by":"grpc-timeout"`},
		{"grpc-timeout and a timeout of the route", to("bounded", "path", "/slow", "header", "grpc-timeout=1H"), outbound(slow, "bounded", "grpc-timeout: 1H\r\n"), "504", `"timeout":"200ms","timeout_by":"route"`},
		{"TCP to a port without a protocol", in("IN_AUTO", "protocol", "tcp"), inbound("IN_AUTO", garbage), "first", `"http":false`},
		{"HTTP to a port without a protocol", in("IN_AUTO"), inbound("IN_AUTO", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), "502", `"http":true`},
		{"HTTP/1.0 to a port without a protocol", in("IN_AUTO", "protocol", "http/1.0"), inbound("IN_AUTO", "GET / HTTP/1.0\r\nHost: a\r\n\r\n"), "first", `"http":false`},
		{"a server that speaks first", in("IN_AUTO", "protocol", "server-first"), inbound("IN_AUTO", ""), "first", `"wait":{"for":"200ms"}`},
		{"a port of MySQL", in("IN_MYSQL", "protocol", "server-first"), inbound("IN_MYSQL", ""), "first", `"http":false`},
		{"a timeout of a silent connection", to("db", "protocol", "server-first"), func() string { return w.whole(t, w.ports["OUT_TCP"]) }, "first", `"timeout_idle":"200ms"`},
		{"grpc-timeout at the workload", in("IN_HTTP", "path", "/slow", "header", "grpc-timeout=200m"), inbound("IN_HTTP", "GET /slow HTTP/1.1\r\nHost: a\r\ngrpc-timeout: 200m\r\n\r\n"), "504", `"deadline":"200ms"`},
		{"TCP to a port of HTTP", in("IN_HTTP", "protocol", "tcp"), inbound("IN_HTTP", garbage), "400", "the client sends something else"},
	}
}

// acceptOld checks that proxies which accept HTTP/1.0 do, also where the protocol is detected, and that the
// control plane says so.
func (w *protocolsWorld) acceptOld(t *testing.T) {
	t.Helper()
	w.http10 = true
	w.restart()
	w.server.Debug(debug.Config{})
	for port, want := range map[string]string{"IN_HTTP": "200", "IN_AUTO": "502"} { // the server at IN_AUTO does not speak HTTP
		until(t, "Envoy accepts HTTP/1.0 at "+port, func() bool { return w.raw(t, w.ports[port], "GET / HTTP/1.0\r\nHost: a\r\n\r\n") == want })
		form := url.Values{"from": {"none"}, "to": {"shop-1.default"}, "port": {w.ports[port]}, "protocol": {"http/1.0"}}
		if code, body := postDebug(w.server, "request", form); code != http.StatusOK || !strings.Contains(body, `"allowed":true`) || !strings.Contains(body, `"http":true`) {
			t.Errorf("HTTP/1.0 is accepted at %s: got %d %s", port, code, body)
		}
	}
}
