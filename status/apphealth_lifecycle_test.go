// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/status/probe"
)

const prestop = "/app-lifecycle/app/prestopz"

// hooks serves the hook that the JSON in text describes, in which PORT is replaced by the port, and
// returns the address.
func hooks(t *testing.T, text, port string) string {
	t.Helper()
	probers, err := ParseProbers(`{"` + prestop + `": ` + strings.ReplaceAll(text, "PORT", port) + `}`)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: Config{
		Probers: probers, InstanceIP: "127.0.0.1",
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	return upstream(t, s.serveProbe).Listener.Addr().String()
}

func TestHookIsForwarded(t *testing.T) {
	t.Parallel()
	app := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError) // the kubelet accepts any response
		_, _ = io.WriteString(w, r.UserAgent()+" "+r.URL.Path)
	})
	address := hooks(t, `{"httpGet": {"path": "/stop", "port": PORT}}`, portOfAddr(t, app.URL))
	code, body, _ := do(t, http.MethodGet, address, prestop, http.Header{"User-Agent": {"kube-lifecycle/1.36"}})
	if code != http.StatusInternalServerError || body != "kube-lifecycle/1.36 /stop" {
		t.Errorf("hook = %d %q", code, body)
	}
}

// TestHookWithoutApplication checks that there is no response if the application cannot be reached,
// because the kubelet treats any response as success.
func TestHookWithoutApplication(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"httpGet": {"port": PORT}}`, `{"tcpSocket": {"port": PORT}}`} {
		address := hooks(t, text, deadPort(t))
		resp, err := client.Get("http://" + address + prestop)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("hook %s = %d, want no response", text, resp.StatusCode)
		}
	}
}

func TestHookWithoutTLS(t *testing.T) {
	t.Parallel()
	app := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "plain "+r.Header.Get("Authorization")+r.Header.Get("X-A"))
	})
	port := portOfAddr(t, app.URL)
	address := hooks(t, `{"httpGet": {"port": PORT, "scheme": "HTTPS", "httpHeaders": [{"name": "Authorization", "value": "secret"}, {"name": "X-A", "value": "a"}]}}`, port)
	wantAnswer(t, address, prestop, http.StatusOK, "plain a")
	// Unlike hooks, probes are not retried without TLS.
	wantAnswer(t, serveProbe(t, `{"httpGet": {"port": PORT, "scheme": "HTTPS"}}`, port, nil), livez, http.StatusInternalServerError, "HTTP response to HTTPS client")
}

func TestHookRequiresGet(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	app := upstream(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	address := hooks(t, `{"httpGet": {"port": PORT}}`, portOfAddr(t, app.URL))
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodOptions, "PRI"} {
		if code, _, header := do(t, method, address, prestop, nil); code != http.StatusMethodNotAllowed || header.Get("Allow") != http.MethodGet {
			t.Errorf("%s = %d, want 405 with the header Allow", method, code)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the application received %d requests, want none", n)
	}
}

// TestHookEndsWithPeer checks that a hook, which has no timeout, ends when its caller
// disconnects.
func TestHookEndsWithPeer(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	app := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	address := hooks(t, `{"httpGet": {"port": PORT}}`, portOfAddr(t, app.URL))
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+prestop+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-begun
	_ = conn.Close()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Error("the request to the application did not end although its caller had disconnected")
	}
}

// TestConnectionsAreKept checks that connections of probes are reused only if keep-alive is
// enabled.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		var opened atomic.Int32
		app := httptest.NewUnstartedServer(http.HandlerFunc(mirror))
		app.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		app.EnableHTTP2 = true
		app.StartTLS()
		t.Cleanup(app.Close)
		address := serveProbe(t, `{"httpGet": {"port": PORT, "scheme": "HTTPS"}}`, portOfAddr(t, app.URL), func(c *Config) {
			if err := c.Probers.Share(probe.ClientConfig{KeepAlive: keep, HTTP1Only: keep}); err != nil {
				t.Fatal(err)
			}
		})
		for range 3 {
			// HTTP1Only restricts probes to HTTP/1; without it, HTTP/2 is negotiated.
			if s := probeSeen(t, address, nil); s.Proto != map[bool]int{true: 1, false: 2}[keep] {
				t.Errorf("keep-alive %t: probe over HTTP/%d", keep, s.Proto)
			}
		}
		if n := opened.Load(); n != map[bool]int32{true: 1, false: 3}[keep] {
			t.Errorf("keep-alive %t: %d connections were opened", keep, n)
		}
	}
}

// TestRedirectsForOtherCallers checks that a caller cannot reach other ports of the host by adding
// headers from which an application may build a redirect. Redirects are followed for the kubelet.
func TestRedirectsForOtherCallers(t *testing.T) {
	t.Parallel()
	inside := upstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") })
	insidePort := portOfAddr(t, inside.URL)
	app := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		to := r.Header.Get("X-Forwarded-Host")
		if to == "" {
			to = r.Host
		}
		if r.URL.Path == "/fixed" {
			to = "127.0.0.1:" + insidePort
		}
		w.Header().Set("Location", "http://"+to+"/inside")
		w.WriteHeader(http.StatusFound)
	})
	for name, c := range map[string]struct {
		path   string
		header http.Header
		body   string
	}{
		"kubelet":                   {"/fixed", http.Header{"User-Agent": {"kube-probe/1.36"}, "Accept": {"*/*"}}, "inside"},
		"kubelet with its header":   {"/fixed", http.Header{"X-Own": {"1"}}, "inside"},
		"with another value":        {"/fixed", http.Header{"X-Own": {"2"}}, ""},
		"with two values":           {"/fixed", http.Header{"X-Own": {"1", "1"}}, ""},
		"with a header":             {"/", http.Header{"X-Forwarded-Host": {"127.0.0.1:" + insidePort}}, ""},
		"with a host":               {"/", http.Header{"Host": {"127.0.0.1:" + insidePort}}, ""},
		"with a host, and fixed":    {"/fixed", http.Header{"Host": {"strange.example"}}, ""},
		"with a cookie, and fixed":  {"/fixed", http.Header{"Cookie": {"a=b"}}, ""},
		"with an upgrade and fixed": {"/fixed", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"h2c"}}, ""},
	} {
		address := serveProbe(t, `{"httpGet": {"path": "`+c.path+`", "port": PORT, "httpHeaders": [{"name": "X-Own", "value": "1"}]}}`, portOfAddr(t, app.URL), nil)
		code, body, _ := do(t, http.MethodGet, address, livez, c.header)
		if want := map[bool]int{true: http.StatusMultipleChoices, false: http.StatusOK}[c.body == ""]; code != want || body != c.body {
			t.Errorf("%s: %d %q, want %d %q", name, code, body, want, c.body)
		}
	}
}

// TestRedirectToStatusPort checks that a redirect to the status port does not cause a loop.
func TestRedirectToStatusPort(t *testing.T) {
	t.Parallel()
	var own, asked atomic.Int32
	app := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "http://127.0.0.1:"+strconv.Itoa(int(own.Load()))+livez, http.StatusFound)
	})
	address := serveProbe(t, `{"httpGet": {"port": PORT}}`, portOfAddr(t, app.URL), nil)
	port, err := strconv.Atoi(portOfAddr(t, address))
	if err != nil {
		t.Fatal(err)
	}
	own.Store(int32(port))
	wantAnswer(t, address, livez, http.StatusMultipleChoices, "")
	if n := asked.Load(); n != 1 {
		t.Errorf("the application received %d requests, want 1", n)
	}
}
