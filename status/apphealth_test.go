// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const livez = "/app-health/app/livez"

// portOfAddr returns the port of an address or URL.
func portOfAddr(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// serveProbe runs a server with one probe, which is given as JSON in which PORT is replaced by the
// port.
func serveProbe(t *testing.T, probe, port string, edit func(*Config)) string {
	t.Helper()
	probers, err := ParseProbers(`{"` + livez + `": ` + strings.ReplaceAll(probe, "PORT", port) + `}`)
	if err != nil {
		t.Fatal(err)
	}
	_, address := serve(t, func(c *Config) {
		c.Probers = probers
		if edit != nil {
			edit(c)
		}
	})
	return address
}

// seen describes a probe as the application received it.
type seen struct {
	Host, Path, Peer string
	Header           http.Header
	Close            bool
	Proto            int
}

// mirror responds with a description of the request.
func mirror(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(seen{r.Host, r.URL.String(), r.RemoteAddr, r.Header, r.Close, r.ProtoMajor})
}

func probeSeen(t *testing.T, address string, header http.Header) seen {
	t.Helper()
	code, body, _ := do(t, http.MethodGet, address, livez, header)
	var s seen
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != http.StatusOK {
		t.Fatalf("probe = %d %q: %v", code, body, err)
	}
	return s
}

func TestHTTPProbeForwardsHeaders(t *testing.T) {
	t.Parallel()
	app := upstream(t, mirror)
	port := portOfAddr(t, app.URL)
	address := serveProbe(t, `{"httpGet": {"path": "/health?a=b%2Fc", "port": PORT, "httpHeaders": [{"name": "X-Own", "value": "variable"},
		{"name": "X-Missing", "value": "variable"}, {"name": "Accept", "value": ""}]}}`, port, nil)

	s := probeSeen(t, address, http.Header{
		"User-Agent": {"kube-probe/1.30"}, "X-Many": {"1", "2"}, "X-Own": {"request"}, "Te": {"trailers"}, "Keep-Alive": {"9"},
		"Connection": {"X-Hop, close"}, "X-Hop": {"of this connection"}, "X-Forwarded-Client-Cert": {"URI=spiffe://forged"},
	})
	for name, want := range map[string]string{
		"User-Agent": "kube-probe/1.30", "X-Many": "1,2", "X-Own": "request", "X-Missing": "variable", "Te": "", "Keep-Alive": "",
		"X-Hop": "", "X-Forwarded-Client-Cert": "", "Accept": "",
	} {
		if got := strings.Join(s.Header[name], ","); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
	if s.Path != "/health?a=b%2Fc" || !s.Close {
		t.Errorf("got path %q, connection kept open: %t", s.Path, !s.Close)
	}
	if s.Host != "127.0.0.1:"+port {
		t.Errorf("Host = %q, want the application's address, not that of the status port", s.Host)
	}
	if s := probeSeen(t, address, http.Header{"Host": {"shop.example"}}); s.Host != "shop.example" {
		t.Errorf("Host = %q, want the one of the request", s.Host)
	}
}

func TestHTTPProbeHosts(t *testing.T) {
	t.Parallel()
	app := upstream(t, mirror)
	port := portOfAddr(t, app.URL)
	// The InstanceIP cannot be reached, so the probe's own host must be used.
	address := serveProbe(t, `{"httpGet": {"port": PORT, "host": "127.0.0.1", "httpHeaders": [{"name": "Host", "value": "own.example"}]}}`, port,
		func(c *Config) { c.InstanceIP, c.ProbeSourceIP = "127.0.0.99", "127.0.0.6" })
	s := probeSeen(t, address, http.Header{"Host": {"shop.example"}})
	if s.Host != "shop.example" {
		t.Errorf("Host = %q, want the one of the request", s.Host)
	}
	if s := probeSeen(t, address, nil); s.Host != "own.example" {
		t.Errorf("Host = %q, want the one of the variable, because that of the request names the status port", s.Host)
	}
	if !strings.HasPrefix(s.Peer, "127.0.0.6:") {
		t.Errorf("the probe came from %s, want 127.0.0.6", s.Peer)
	}
}

func TestHTTPSProbe(t *testing.T) {
	t.Parallel()
	app := httptest.NewUnstartedServer(http.HandlerFunc(mirror))
	app.EnableHTTP2 = true
	app.StartTLS()
	t.Cleanup(app.Close)
	address := serveProbe(t, `{"httpGet": {"port": PORT, "scheme": "HTTPS"}}`, portOfAddr(t, app.URL), nil)
	if s := probeSeen(t, address, nil); s.Proto != 2 {
		t.Errorf("probe over HTTP/%d, want 2", s.Proto)
	}
}

func TestHTTPProbeAnswers(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	app := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/teapot":
			w.Header().Set("Set-Cookie", "secret=1")
			http.Error(w, "short and stout", http.StatusTeapot)
		case "/empty":
			w.WriteHeader(http.StatusNoContent)
		case "/long":
			_, _ = w.Write(make([]byte, 100<<10))
		case "/same":
			http.Redirect(w, r, "/teapot", http.StatusFound)
		case "/other":
			http.Redirect(w, r, "http://elsewhere.example/", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/slow":
			<-release
		}
	})
	t.Cleanup(func() { close(release) }) // runs before the application is closed
	for path, want := range map[string]struct {
		code int
		body string
	}{
		"/teapot": {http.StatusTeapot, "short and stout"},
		"/empty":  {http.StatusNoContent, ""},
		"/long":   {http.StatusOK, ""},
		"/same":   {http.StatusTeapot, "short and stout"},
		"/other":  {http.StatusMultipleChoices, `<a href="http://elsewhere.example/">`},
		"/loop":   {http.StatusInternalServerError, "stopped after 10 redirects"},
		"/slow":   {http.StatusInternalServerError, "deadline exceeded"},
	} {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			address := serveProbe(t, `{"httpGet": {"path": "`+path+`", "port": PORT}, "timeoutSeconds": 1}`, portOfAddr(t, app.URL), nil)
			code, body, header := do(t, http.MethodGet, address, livez, nil)
			if code != want.code || !strings.Contains(body, want.body) {
				t.Errorf("probe = %d %q, want %d with %q", code, body, want.code, want.body)
			}
			if len(body) > 10<<10 || header.Get("Location") != "" || header.Get("Set-Cookie") != "" {
				t.Errorf("the response has %d bytes and headers %v, want at most 10 KiB without Location and Set-Cookie", len(body), header)
			}
		})
	}
}

// deadPort returns a port without a listener.
func deadPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return portOfAddr(t, listener.Addr().String())
}

func TestProbesWithoutApplication(t *testing.T) {
	t.Parallel()
	port := deadPort(t)
	for _, probe := range []string{`{"httpGet": {"port": PORT}}`, `{"tcpSocket": {"port": PORT}}`, `{"grpc": {"port": PORT}}`} {
		address := serveProbe(t, probe, port, nil)
		code, body := get(t, address, livez)
		if code != http.StatusInternalServerError || !strings.Contains(body, "connection refused") || !strings.Contains(body, "at 127.0.0.1:"+port) {
			t.Errorf("%s = %d %q, want 500 with the address", probe, code, body)
		}
	}
}

func TestTCPProbe(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	port := portOfAddr(t, listener.Addr().String())
	wantAnswer(t, serveProbe(t, `{"tcpSocket": {"port": PORT}}`, port, nil), livez, http.StatusOK, "ok")
	away := func(c *Config) { c.InstanceIP = "127.0.0.99" }
	wantAnswer(t, serveProbe(t, `{"tcpSocket": {"port": PORT}}`, port, away), livez, http.StatusInternalServerError, "127.0.0.99:"+port)
	wantAnswer(t, serveProbe(t, `{"tcpSocket": {"port": PORT, "host": "127.0.0.1"}}`, port, away), livez, http.StatusOK, "ok")
}

func TestGRPCProbe(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	checks := health.NewServer()
	checks.SetServingStatus("well", healthv1.HealthCheckResponse_SERVING)
	checks.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	server := grpc.NewServer()
	healthv1.RegisterHealthServer(server, checks)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	port := portOfAddr(t, listener.Addr().String())
	for service, want := range map[string]struct {
		code int
		body string
	}{
		`null`:      {http.StatusOK, "ok"},
		`"well"`:    {http.StatusOK, "ok"},
		`"ill"`:     {http.StatusInternalServerError, `service "ill" is NOT_SERVING`},
		`"unknown"`: {http.StatusInternalServerError, `does not know the service "unknown"`},
	} {
		// With timeoutSeconds 0 the default timeout applies, so the probe must not fail at once.
		address := serveProbe(t, fmt.Sprintf(`{"grpc": {"port": PORT, "service": %s}, "timeoutSeconds": 0}`, service), port, nil)
		wantAnswer(t, address, livez, want.code, want.body)
	}
}

func TestOwnPortIsRejected(t *testing.T) {
	t.Parallel()
	for path, loop := range map[string]bool{"/app-health/x/livez": true, "/healthz/ready": false} {
		probers := Probers{livez: {HTTPGet: &HTTPGet{Scheme: "http", Port: 15020, Path: path}}}
		err := probers.checkLoop(&net.TCPAddr{Port: 15020})
		if (err != nil) != loop {
			t.Errorf("path %s at port %s: got error %v, want one: %t", path, strconv.Itoa(15020), err, loop)
		}
	}
}
