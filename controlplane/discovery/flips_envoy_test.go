// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/proto"

	configcodec "github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug/debugtest"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// flipObjects are the ports of a workload that serves HTTP and TCP, and flipService is a service outside of it.
const flipObjects = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: default}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress:
  - {port: {number: INBOUND_HTTP, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:HTTP_ONE"}
  - {port: {number: INBOUND_TCP, protocol: TCP, name: tcp}, defaultEndpoint: "127.0.0.1:TCP_ONE"}
`

const flipService = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: default}
spec:
  hosts: [NAME.default.svc.cluster.local]
  addresses: [ADDRESS]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, targetPort: HTTP_TARGET, name: http, protocol: HTTP}
  - {number: UPPER_OUT_TCP, targetPort: TCP_TARGET, name: tcp, protocol: TCP}
  - {number: UPPER_OUT_TLS, targetPort: TCP_TARGET, name: tls, protocol: TLS}
  endpoints: [{address: 127.0.0.1}]
`

// flipsWorld is an Envoy of a workload with two services, "one" and "two".
type flipsWorld struct {
	*wireMesh
	ip    string
	ports *strings.Replacer
	key   *ecdsa.PrivateKey
}

// TestEnvoyFlips sends the requests whose results would change by what-if to the real Envoy, before and
// after the change.
func TestEnvoyFlips(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	w := startFlips(t, "127.77.66.1")
	policy := func(spec string) string {
		return `{"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": {"name": "a", "namespace": "default"}, "spec": ` + spec + "}\n"
	}
	route := func(spec string) string {
		return `{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "one", "namespace": "default"}, "spec": {"hosts": ["one.default.svc.cluster.local", "more.example.com"], ` + spec + `}}`
	}
	to := func(service string, port string) string {
		return `[{"destination": {"host": "` + service + `.default.svc.cluster.local", "port": {"number": ` + port + `}}}]`
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: w.key.Public(), KeyID: "k", Algorithm: string(jose.ES256)}}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := fmt.Sprintf(`---
{"apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication", "metadata": {"name": "a", "namespace": "default"}, "spec": {"jwtRules": [{"issuer": "https://issuer.example", "audiences": ["shop"], "jwks": %q}]}}`, keys)
	for _, c := range []struct {
		name, object string
		flips        int
	}{
		{"headers and paths", policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"methods": ["POST"], "paths": ["/a*", "*/b", "/{*}/c"]}}], "when": [{"key": "request.headers[x-team]", "values": ["red*", "blue"]}]}]}`), 5},
		{"tokens", policy(`{"action": "DENY", "rules": [{"to": [{"operation": {"ports": ["INBOUND_HTTP"]}}], "when": [{"key": "request.auth.claims[groups][name]", "values": ["admin", "own*"]}, {"key": "request.auth.presenter", "notValues": ["me"]}]}]}`) + tokens, 4},
		{"a token is required", policy(`{"rules": [{"from": [{"source": {"requestPrincipals": ["https://issuer.example/sam"]}}]}]}`) + tokens, 4},
		{"addresses", policy(`{"action": "DENY", "rules": [{"from": [{"source": {"ipBlocks": ["127.77.67.0/24"]}}, {"source": {"remoteIpBlocks": ["127.77.68.0/24"]}}]}]}`), 4},
		{"routes", route(`"http": [{"match": [{"headers": {"x-user": {"regex": "j(a|e)s+on"}, "x-more": {"prefix": "m"}}}, {"queryParams": {"v": {"exact": "2"}}, "method": {"exact": "PUT"}}, {"uri": {"regex": "/v[0-9]+/.*"}}], "route": ` + to("two", "80") + `}, {"match": [{"withoutHeaders": {"x-none": {"exact": "a"}}}], "route": ` + to("one", "80") + `}, {"route": ` + to("two", "80") + `}]`), 4},
		{"TCP route", route(`"tcp": [{"match": [{"port": ONE_OUT_TCP}], "route": ` + to("two", "TWO_OUT_TCP") + `}]`), 1},
		{"TLS route", route(`"tls": [{"match": [{"port": ONE_OUT_TLS, "sniHosts": ["more.example.com"]}], "route": ` + to("two", "TWO_OUT_TLS") + `}]`), 2},
	} {
		form := url.Values{"objects": {w.ports.Replace(c.object)}}
		code, body := postDebug(w.server, "whatif", form)
		var answer report.WhatIf
		if err := json.Unmarshal([]byte(body), &answer); code != http.StatusOK || err != nil {
			t.Fatalf("%s: got %d %s", c.name, code, body)
		}
		flips := slices.DeleteFunc(answer.Flips, func(x report.Flipped) bool {
			return len(x.Clients) > 0 && !slices.Contains(x.Clients, "none") || x.Routed != "" && x.Method != "" && x.Host != "one.default.svc.cluster.local:80"
		})
		if len(flips) != c.flips || len(answer.Untried) > 0 {
			t.Errorf("%s: got %d results, want %d, untried %q:\n%s", c.name, len(flips), c.flips, answer.Untried, strings.Join(flipTexts(answer), "\n"))
		}
		objects, _ := configcodec.Decode(c.name, []byte(form.Get("objects")))
		w.check(t, c.name, flips, false)
		w.apply(objects, true)
		w.check(t, c.name, flips, true)
		w.apply(objects, false)
	}
}

// startFlips starts the control plane, the servers and Envoy.
func startFlips(t *testing.T, ip string) *flipsWorld {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &flipsWorld{wireMesh: newWireMesh(t, ip), ip: ip, key: key}
	w.noTLS = true
	var ports []string
	for _, name := range []string{"INBOUND_HTTP", "INBOUND_TCP", "ONE_OUT_TCP", "ONE_OUT_TLS", "TWO_OUT_TCP", "TWO_OUT_TLS"} {
		port := freePort(t, ip)
		for slices.Contains(ports, port) {
			port = freePort(t, ip)
		}
		ports = append(ports, name, port)
	}
	services := ""
	for i, name := range []string{"one", "two"} {
		upper := strings.ToUpper(name)
		app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })) // the client checks it
		t.Cleanup(app.Close)
		stream := serveName(t, name)
		ports = append(ports, "HTTP_"+upper, portOf(t, app.Listener.Addr()), "TCP_"+upper, portOf(t, stream.Addr()))
		services += strings.NewReplacer("NAME", name, "UPPER", upper, "ADDRESS", fmt.Sprint("240.0.9.", i+1), "HTTP_TARGET", "HTTP_"+upper, "TCP_TARGET", "TCP_"+upper).Replace(flipService)
	}
	w.ports = strings.NewReplacer(ports...)
	objects, _ := configcodec.Decode("world", []byte(w.ports.Replace(flipObjects+services)))
	w.apply(objects, true)
	stored := debugtest.Objects(objects)
	w.server.Debug(debug.Config{
		Objects: stored, FlipTime: time.Hour, Preview: func() debug.Generator { return generate.New(generate.Config{}) },
		Propose: func(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
			w.mu.Lock()
			defer w.mu.Unlock()
			in, next := w.input(), stored.Changed(p.Objects)
			in.List = func(kind model.Kind) []*model.Config { return next.List(kind, "") }
			return debug.Outcome{Mesh: snapshot.Build(prev, in, model.Change{All: true})}
		},
	})
	_ = runWireEnvoy(t, w.wireMesh, "DELTA_GRPC", ip)
	until(t, "Envoy serves", func() bool {
		return w.sent(t, report.Flipped{Routed: "80", Method: http.MethodGet, Host: "two.default.svc.cluster.local", Path: "/"}) == "two"
	})
	return w
}

// serveName writes a name to each connection.
func serveName(t *testing.T, name string) net.Listener {
	t.Helper()
	l := listenOn(t, "127.0.0.1")
	t.Cleanup(func() { _ = l.Close() }) // it has no state
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(conn, name+"\n\n") // the client checks it
				_, _ = io.Copy(io.Discard, conn)         // until the client closes
				_ = conn.Close()
			}()
		}
	}()
	return l
}

// apply writes objects, or deletes them.
func (w *flipsWorld) apply(objects []*model.Config, exist bool) {
	specs := map[model.Key]proto.Message{}
	for _, c := range objects {
		if specs[c.Key] = nil; exist {
			specs[c.Key], _ = c.Spec.(proto.Message)
		}
	}
	w.putAll(specs)
}

// check waits until each request has the result that what-if predicts.
func (w *flipsWorld) check(t *testing.T, name string, flips []report.Flipped, after bool) {
	t.Helper()
	for _, x := range flips {
		want := x.Before
		if after {
			want = x.After
		}
		for _, service := range []string{"one", "two"} {
			if strings.Contains(want, "||"+service+".default.svc.cluster.local") {
				want = service
			}
		}
		if strings.HasPrefix(want, "no filter chain") {
			want = "denied"
		}
		got := ""
		for end := time.Now().Add(time.Minute); got != want; time.Sleep(time.Millisecond) {
			if got = w.sent(t, x); time.Now().After(end) {
				t.Fatalf("%s: after=%t: Envoy answers %q, want %q: %+v", name, after, got, want, x)
			}
		}
	}
}

// sent sends a request. It returns "allowed" or "denied" for one to a server, and the name of the service
// that answers for others.
func (w *flipsWorld) sent(t *testing.T, x report.Flipped) string {
	t.Helper()
	at := net.JoinHostPort(w.ip, strconv.Itoa(int(x.Port)))
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	if x.Address != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(x.Address)}
	}
	if x.Method == "" {
		return streamed(t, dialer, at, x)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}
	r, err := http.NewRequestWithContext(t.Context(), x.Method, "http://"+at+x.Path, nil)
	if x.Routed != "" {
		transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: net.JoinHostPort(w.ip, "15080")})
		r, err = http.NewRequestWithContext(t.Context(), x.Method, "http://"+x.Host+x.Path, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Host = x.Host
	for name, value := range x.Headers {
		r.Header.Set(name, value)
	}
	if x.Claims != nil {
		r.Header.Set("Authorization", "Bearer "+w.token(t, x.Claims))
	}
	resp, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }() // it is read below
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err.Error()
	case x.Routed != "":
		return string(body)
	case resp.StatusCode == http.StatusOK:
		return "allowed"
	case resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnauthorized:
		return "denied"
	}
	return resp.Status
}

// streamed opens a connection and returns what it leads to.
func streamed(t *testing.T, dialer *net.Dialer, at string, x report.Flipped) string {
	t.Helper()
	conn, err := dialer.DialContext(t.Context(), "tcp", at)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var first []byte
	if x.SNI != "" {
		var plain tls.RecordHeaderError // the server does not speak TLS, but writes its name
		if err := tls.Client(conn, &tls.Config{ServerName: x.SNI, InsecureSkipVerify: true}).Handshake(); errors.As(err, &plain) {
			first = plain.RecordHeader[:]
		}
	} else {
		first = make([]byte, 5)
		_, _ = io.WriteString(conn, "x") // rules are applied to the first bytes
		n, _ := io.ReadFull(conn, first) // nothing if it is closed
		first = first[:n]
	}
	switch name := strings.TrimSpace(string(first)); {
	case name == "":
		return "denied"
	case x.Routed == "":
		return "allowed"
	default:
		return name
	}
}

// token returns a signed token.
func (w *flipsWorld) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: w.key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
