// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
)

// httpCase is an application and a probe of it.
type httpCase struct {
	name string
	// path, headers and host are those of the probe.
	path    string
	headers []corev1.HTTPHeader
	host    string
	// handler responds; or raw does, after it has read a request.
	handler http.HandlerFunc
	raw     func(net.Conn)
	// secure serves over TLS; https probes over TLS. By default they are equal.
	secure *tls.Config
	scheme corev1.URIScheme
	http1  bool // the server has no HTTP/2
	// timeout of the kubelet. 0: ample.
	timeout time.Duration
	// want is the verdict of both; class is set only where it matters.
	want  probe.Result
	class string
	// unseen disables the comparison of the application's requests.
	unseen bool
}

// header returns headers from names and values.
func header(pairs ...string) []corev1.HTTPHeader {
	var all []corev1.HTTPHeader
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, corev1.HTTPHeader{Name: pairs[i], Value: pairs[i+1]})
	}
	return all
}

// TestHTTP probes each application directly and through the agent.
func TestHTTP(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	for _, table := range [][]httpCase{bodies, requests, paths, redirects(), slow, broken, secured(t)} {
		for _, c := range table {
			if asked[c.name] {
				t.Errorf("there are two cases %q", c.name)
			}
			asked[c.name] = true
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, podIP)
			})
		}
	}
	if len(asked) < 60 {
		t.Errorf("there are only %d cases", len(asked))
	}
}

func TestHTTPOverIPv6(t *testing.T) {
	t.Parallel()
	const ip = "::1"
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Skipf("there is no IPv6 on this machine: %v", err)
	}
	_ = listener.Close()
	for _, c := range []httpCase{
		{name: "ok", handler: mirror, want: probe.Success},
		{name: "host", handler: mirror, headers: header("Host", "shop.example"), want: probe.Success},
		{name: "redirect", path: "/relative", handler: redirecting, want: probe.Success},
		{name: "failure", path: "/code/503", handler: coded, want: probe.Failure},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, ip)
		})
	}
}

func (c httpCase) run(t *testing.T, ip string) {
	saw := &memory{}
	action := c.serve(t, ip, saw)

	timeout := c.timeout
	if timeout == 0 {
		timeout = ample
	}
	port := agent(t, ip, map[string]corev1.Probe{"app": {
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &action}, TimeoutSeconds: int32((timeout + time.Second - 1) / time.Second),
	}})

	straight := ask(t, action, ip, timeout)
	sawStraight := saw.take()
	through := ask(t, readyz("app", port, c.headers), ip, timeout)
	sawThrough := saw.take()
	if straight.result != c.want || c.class != "" && straight.class != c.class {
		t.Errorf("direct: %s, %.200q, want %s, %.200q", straight.result, straight.class, c.want, c.class)
	}
	if !same(straight, through) {
		t.Errorf("direct: %s, %.200q; through the agent: %s, %.200q", straight.result, straight.class, through.result, through.class)
	}
	if !c.unseen && sawStraight != sawThrough {
		t.Errorf("the application saw direct:\n%s\nthrough the agent:\n%s", sawStraight, sawThrough)
	}
	if c.raw == nil && c.want == probe.Success && sawStraight == "" {
		t.Error("the application saw nothing")
	}
}

// serve runs the application and returns the probe of it.
func (c httpCase) serve(t *testing.T, ip string, saw *memory) corev1.HTTPGetAction {
	t.Helper()
	listener := listen(t, ip)
	if c.raw != nil {
		serveRaw(t, listener, func(conn net.Conn) {
			buffer := make([]byte, 64<<10)
			if _, err := conn.Read(buffer); err == nil || err == io.EOF {
				c.raw(conn)
			}
		})
	} else {
		server := &http.Server{TLSConfig: c.secure, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			saw.note(r)
			c.handler(w, r)
		})}
		if c.http1 {
			server.Protocols = &http.Protocols{}
			server.Protocols.SetHTTP1(true)
			server.TLSConfig.NextProtos = nil
		}
		serve(t, server, listener)
	}
	action := corev1.HTTPGetAction{Path: c.path, Port: intstr.FromInt(portOf(listener)), Host: c.host, Scheme: c.scheme, HTTPHeaders: c.headers}
	if action.Scheme == "" && c.secure != nil {
		action.Scheme = corev1.URISchemeHTTPS
	}
	return action
}

// mirror responds with the request that it sees.
func mirror(w http.ResponseWriter, r *http.Request) {
	m := &memory{}
	m.note(r)
	_, _ = io.WriteString(w, m.take())
}

// text responds with a body.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

var bodies = []httpCase{
	{name: "a body", handler: text("fine"), want: probe.Success, class: "fine"},
	{name: "no body", handler: text(""), want: probe.Success},
	{name: "a body that just fits", handler: text(strings.Repeat("a", 10<<10)), want: probe.Success, class: strings.Repeat("a", 10<<10)},
	{name: "a body less than fits", handler: text(strings.Repeat("a", 10<<10-1)), want: probe.Success, class: strings.Repeat("a", 10<<10-1)},
	{name: "a body more than fits", handler: text(strings.Repeat("a", 10<<10+1)), want: probe.Success, class: strings.Repeat("a", 10<<10)},
	{name: "a huge body", handler: text(strings.Repeat("a", 5<<20)), want: probe.Success, class: strings.Repeat("a", 10<<10)},
	{name: "a huge body of a failure", want: probe.Failure, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, strings.Repeat("a", 5<<20))
	}},
	{name: "an endless body", want: probe.Success, class: strings.Repeat("a", 10<<10), handler: func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("a", 1<<10)); err != nil {
				return
			}
		}
	}},
	{name: "chunks", want: probe.Success, class: "one, two", handler: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one, ")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "two")
	}},
	{name: "binary", handler: text("\x00\xff\xfe\r\n"), want: probe.Success, class: "\x00\xff\xfe\r\n"},
	{name: "gzip that was asked for", headers: header("Accept-Encoding", "gzip"), handler: zipped, want: probe.Success, class: zippedBody},
	{name: "gzip that was not asked for", handler: zipped, want: probe.Success, class: zippedBody},
	{name: "trailers", want: probe.Success, class: "fine", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-A")
		_, _ = io.WriteString(w, "fine")
		w.Header().Set("X-A", "1")
	}},
	{name: "a big header", want: probe.Success, class: "fine", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-A", strings.Repeat("a", 512<<10))
		_, _ = io.WriteString(w, "fine")
	}},
	{name: "hints before", want: probe.Success, class: "fine", handler: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProcessing)
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "fine")
	}},
}

// zippedBody looks like gzip; it is never decompressed.
const zippedBody = "\x1f\x8b\x08rest"

func zipped(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = io.WriteString(w, zippedBody)
}

var requests = []httpCase{
	{name: "what the kubelet sends", handler: mirror, want: probe.Success},
	{name: "a header", headers: header("X-A", "1"), handler: mirror, want: probe.Success},
	{name: "a header twice", headers: header("X-A", "1", "X-A", "2", "x-a", "1"), handler: mirror, want: probe.Success},
	{name: "a header without a value", headers: header("X-A", ""), handler: mirror, want: probe.Success},
	{name: "a header in small letters", headers: header("x-lower", "1"), handler: mirror, want: probe.Success},
	{name: "a long header", headers: header("X-A", strings.Repeat("a", 32<<10)), handler: mirror, want: probe.Success},
	{name: "a Host", headers: header("Host", "shop.example"), handler: mirror, want: probe.Success},
	{name: "a Host with a port", headers: header("Host", "shop.example:8080"), handler: mirror, want: probe.Success},
	{name: "a host to connect to", host: podIP, handler: mirror, want: probe.Success},
	{name: "a User-Agent", headers: header("User-Agent", "mine/1"), handler: mirror, want: probe.Success},
	{name: "no User-Agent", headers: header("User-Agent", ""), handler: mirror, want: probe.Success},
	{name: "an Accept", headers: header("Accept", "application/json"), handler: mirror, want: probe.Success},
	{name: "no Accept", headers: header("Accept", ""), handler: mirror, want: probe.Success},
	{name: "an Accept-Encoding", headers: header("Accept-Encoding", "br"), handler: mirror, want: probe.Success},
	{name: "credentials", headers: header("Authorization", "Basic YTpi", "Cookie", "a=b"), handler: mirror, want: probe.Success},
	{name: "what proxies write", handler: mirror, want: probe.Success, headers: header("X-Forwarded-For", "1.2.3.4", "X-Forwarded-Proto", "https",
		"Forwarded", "for=1.2.3.4", "X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/a/sa/b")},
	{name: "an upgrade that is declined", headers: header("Connection", "Upgrade", "Upgrade", "websocket"), handler: mirror, want: probe.Success, unseen: true},
	{
		name: "an upgrade that is taken", headers: header("Connection", "Upgrade", "Upgrade", "websocket"), want: probe.Failure, class: "HTTP probe failed with statuscode: 101",
		raw: answer("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
	},
}

var paths = []httpCase{
	{name: "a path", path: "/healthz", handler: mirror, want: probe.Success},
	{name: "a query", path: "/healthz?full=1&a=b%2Fc", handler: mirror, want: probe.Success},
	{name: "only a query", path: "?full=1", handler: mirror, want: probe.Success},
	{name: "no slash", path: "healthz", handler: mirror, want: probe.Success},
	{name: "a fragment", path: "/healthz#a", handler: mirror, want: probe.Success},
	{name: "escapes", path: "/a%2Fb/%41", handler: mirror, want: probe.Success},
	{name: "a broken escape", path: "/%zz?a", handler: mirror, want: probe.Success},
	{name: "a space", path: "/a b", handler: mirror, want: probe.Success},
	{name: "an umlaut", path: "/ä", handler: mirror, want: probe.Success},
	{name: "dots", path: "/a/../b/./c", handler: mirror, want: probe.Success},
	{name: "slashes", path: "////a//b", handler: mirror, want: probe.Success},
	{name: "a host in the path", path: "//other.example/x", handler: mirror, want: probe.Success},
	{name: "a URL for a path", path: "https://other.example:81/x", handler: mirror, want: probe.Success},
}
