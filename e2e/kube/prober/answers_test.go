// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
)

// coded responds to /code/N with the status N.
func coded(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/code/"))
	if err != nil {
		code = http.StatusBadRequest
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, "body of "+r.URL.Path)
}

// TestEveryStatus probes each status that a server may respond with.
func TestEveryStatus(t *testing.T) {
	t.Parallel()
	listener := listen(t, podIP)
	serve(t, &http.Server{Handler: http.HandlerFunc(coded)}, listener)
	probes := map[string]corev1.Probe{}
	for code := 200; code < 1000; code++ {
		if code >= 600 && code != 999 {
			continue
		}
		probes["c"+strconv.Itoa(code)] = corev1.Probe{TimeoutSeconds: 15, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/code/" + strconv.Itoa(code), Port: intstr.FromInt(portOf(listener))},
		}}
	}
	port := agent(t, podIP, probes)
	for container, p := range probes {
		straight, through := ask(t, *p.HTTPGet, podIP, ample), ask(t, readyz(container, port, nil), podIP, ample)
		if !same(straight, through) {
			t.Errorf("%s: direct: %s, %q; through the agent: %s, %q", container, straight.result, straight.class, through.result, through.class)
		}
		want := probe.Failure
		switch {
		case container < "c3":
			want = probe.Success
		case container < "c4":
			want = probe.Warning
		}
		if straight.result != want {
			t.Errorf("%s: direct: %s, want %s", container, straight.result, want)
		}
	}
}

// answer writes bytes and closes the connection.
func answer(text string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

// hold writes bytes and keeps the connection open until the peer closes it.
func hold(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
	}
}

// reset writes bytes and resets the connection.
func reset(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
}

var slow = []httpCase{
	{name: "no answer in time", raw: hold(""), timeout: patience, want: probe.Failure, class: "timeout"},
	{name: "half a status line", raw: hold("HTTP/1.1 20"), timeout: patience, want: probe.Failure, class: "timeout"},
	{name: "half a header", raw: hold("HTTP/1.1 200 OK\r\nX-A: "), timeout: patience, want: probe.Failure, class: "timeout"},
	{name: "endless hints", timeout: patience, want: probe.Failure, class: "timeout", raw: hold("HTTP/1.1 103 Early Hints\r\n\r\n")},
	{name: "no body in time", raw: hold("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"), timeout: patience, want: probe.Failure, class: "error: timeout"},
	{name: "half a body in time", raw: hold("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi"), timeout: patience, want: probe.Failure, class: "error: timeout"},
	{name: "no end of chunks in time", raw: hold("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n"), timeout: patience, want: probe.Failure, class: "error: timeout"},
	{name: "no body of a failure in time", raw: hold("HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\n"), timeout: patience, want: probe.Failure, class: "error: timeout"},
	{name: "enough of a long body in time", timeout: 2 * time.Second, want: probe.Success, class: strings.Repeat("a", 10<<10), raw: hold("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("a", 10<<10))},
	{name: "little by little", want: probe.Success, class: "fine", raw: func(conn net.Conn) {
		for _, part := range []string{"HTTP/1.1 ", "200 OK\r\n", "Content-", "Length: 4\r\n", "\r\n", "f", "in", "e"} {
			_, _ = io.WriteString(conn, part)
			time.Sleep(20 * time.Millisecond) // the application is slow
		}
	}},
	{name: "a redirect to what is slow", path: "/slow", timeout: patience, want: probe.Failure, class: "timeout", handler: redirecting},
}

var broken = []httpCase{
	{name: "an end without an answer", raw: answer(""), want: probe.Failure, class: "no answer"},
	{name: "a reset", raw: reset(""), want: probe.Failure, class: "no answer"},
	{name: "an end in the headers", raw: answer("HTTP/1.1 200 OK\r\nX-A: "), want: probe.Failure, class: "no answer"},
	{name: "an end after the headers", raw: answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"), want: probe.Failure, class: "error"},
	{name: "an end in the body", raw: answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfi"), want: probe.Failure, class: "error"},
	{name: "an end in the chunks", raw: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfi"), want: probe.Failure, class: "error"},
	{name: "a chunk without a length", raw: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nfine\r\n0\r\n\r\n"), want: probe.Failure, class: "error"},
	{name: "a body that ends with the connection", raw: answer("HTTP/1.1 200 OK\r\n\r\nfine"), want: probe.Success, class: "fine"},
	{name: "HTTP/1.0", raw: answer("HTTP/1.0 200 OK\r\n\r\nfine"), want: probe.Success, class: "fine"},
	{name: "HTTP/1.0 with a failure", raw: answer("HTTP/1.0 500 No\r\n\r\nno"), want: probe.Failure, class: unanswered},
	{name: "no reason", raw: answer("HTTP/1.1 200\r\nContent-Length: 4\r\n\r\nfine"), want: probe.Success, class: "fine"},
	{name: "bare line ends", raw: answer("HTTP/1.1 200 OK\nContent-Length: 4\n\nfine"), want: probe.Success, class: "fine"},
	{name: "more than was announced", raw: answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine and more"), want: probe.Success, class: "fine"},
	{name: "100 and then an answer", raw: answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"), want: probe.Success, class: "fine"},
	{name: "100 and no answer", raw: answer("HTTP/1.1 100 Continue\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "the status 099", raw: answer("HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n"), want: probe.Failure, class: "HTTP probe failed with statuscode: 99"},
	{name: "a status of two digits", raw: answer("HTTP/1.1 20 OK\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "a status without digits", raw: answer("HTTP/1.1 fine OK\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "a status of four digits", raw: answer("HTTP/1.1 2000 OK\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "what is not HTTP", raw: answer("220 mail.example ESMTP\r\n"), want: probe.Failure, class: "no answer"},
	{name: "the start of HTTP/2", raw: answer("\x00\x00\x00\x04\x00\x00\x00\x00\x00"), want: probe.Failure, class: "no answer"},
	{name: "a header without a colon", raw: answer("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "two lengths", raw: answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfine!"), want: probe.Failure, class: "no answer"},
	{name: "a length below zero", raw: answer("HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nfine"), want: probe.Failure, class: "no answer"},
	{name: "an unknown coding", raw: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: secret\r\n\r\nfine"), want: probe.Failure, class: "no answer"},
	{name: "headers beyond measure", raw: answer("HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 11<<20) + "\r\n\r\n"), want: probe.Failure, class: "no answer"},
	{name: "304 with a length", raw: answer("HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n"), want: probe.Warning, class: "Probe terminated redirects, Response body: "},
	{name: "204 with a body", raw: answer("HTTP/1.1 204 No Content\r\n\r\nfine"), want: probe.Success},
}

// TestClosedPort probes a port without a listener.
func TestClosedPort(t *testing.T) {
	t.Parallel()
	listener := listen(t, podIP)
	_ = listener.Close()
	for _, scheme := range []corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS} {
		action := corev1.HTTPGetAction{Port: intstr.FromString(itoa(portOf(listener))), Scheme: scheme}
		port := agent(t, podIP, map[string]corev1.Probe{"app": {ProbeHandler: corev1.ProbeHandler{HTTPGet: &action}}})
		straight, through := ask(t, action, podIP, ample), ask(t, readyz("app", port, nil), podIP, ample)
		if straight != (verdict{probe.Failure, "no answer"}) || !same(straight, through) {
			t.Errorf("direct: %v, through the agent: %v", straight, through)
		}
	}
}
