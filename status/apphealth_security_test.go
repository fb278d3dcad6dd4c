// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is an application that records the requests it receives.
type recorder struct {
	mu    sync.Mutex
	asked []string
}

func (a *recorder) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r.Method+" "+r.RequestURI+" "+string(body)+strings.Join(r.TransferEncoding, ","))
}

func (a *recorder) take() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := strings.Join(a.asked, "|")
	a.asked = nil
	return all
}

// raw sends bytes and returns the status codes of all responses until the connection ends.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	// Ignore errors: the server may respond before it has read everything.
	_, _ = io.WriteString(conn, text)
	var codes []string
	for reader := bufio.NewReader(conn); ; {
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			return strings.Join(codes, " ")
		}
		codes = append(codes, resp.Status[:3])
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// line returns a request that begins with the given method and target.
func line(text string) string { return text + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" }

const fixed = "GET /fixed?a=b "

func TestRejectedRequests(t *testing.T) {
	t.Parallel()
	app := &recorder{}
	target := httptest.NewServer(app)
	t.Cleanup(target.Close)
	address := serveProbe(t, `{"httpGet": {"path": "/fixed?a=b", "port": PORT}}`, portOfAddr(t, target.URL), func(c *Config) {
		c.Loopback = Loopback{Quit: func() { t.Error("the agent was made to quit") }, Drain: func(context.Context) { t.Error("the agent was made to drain") }}
	})
	inside := target.Listener.Addr().String()
	for name, c := range map[string]struct{ request, codes, asked string }{
		"the probe":            {line("GET " + livez), "200", fixed},
		"its query":            {line("GET " + livez + "?path=/other&port=81&host=other"), "200", fixed},
		"HEAD":                 {line("HEAD " + livez), "200", fixed},
		"HTTP/1.0":             {"GET " + livez + " HTTP/1.0\r\n\r\n", "200", fixed},
		"absolute":             {line("GET http://other.example:81" + livez), "200", fixed},
		"a body":               {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", "200", fixed},
		"a chunked body":       {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", "200", fixed},
		"two in a row":         {"GET " + livez + " HTTP/1.1\r\nHost: x\r\n\r\n" + line("GET "+livez), "200 200", fixed + "|" + fixed},
		"absolute, elsewhere":  {line("GET http://" + inside + "/fixed"), "404", ""},
		"a trailing slash":     {line("GET " + livez + "/"), "400", ""},
		"doubled slashes":      {line("GET /app-health//app/livez"), "307", ""},
		"doubled at the start": {line("GET //app-health/app/livez"), "307", ""},
		"a dot":                {line("GET /app-health/./app/livez"), "307", ""},
		"dots":                 {line("GET /app-health/app/../app/livez"), "307", ""},
		"dots beyond the root": {line("GET /app-health/app/livez/../../../../fixed"), "307", ""},
		"dots in escapes":      {line("GET /app-health/app/livez/%2e%2e/livez"), "400", ""},
		"an escaped slash":     {line("GET /app-health/app%2Flivez"), "400", ""},
		"escaped slashes":      {line("GET /app-health%2Fapp%2Flivez"), "404", ""},
		"an escaped letter":    {line("GET /app-health/%61pp/livez"), "400", ""},
		"an escaped percent":   {line("GET /app-health/%2561pp/livez"), "400", ""},
		"a zero byte":          {line("GET " + livez + "%00"), "400", ""},
		"a semicolon":          {line("GET " + livez + ";a=b"), "400", ""},
		"a fragment":           {line("GET " + livez + "#a"), "400", ""},
		"an escaped query":     {line("GET " + livez + "%3Fa"), "400", ""},
		"a backslash":          {line(`GET \app-health\app\livez`), "400", ""},
		"capitals":             {line("GET /App-Health/app/livez"), "404", ""},
		"another container":    {line("GET /app-health/other/livez"), "400", ""},
		"another probe":        {line("GET /app-health/app/readyz"), "400", ""},
		"a broken escape":      {line("GET /app-health/app/livez%zz"), "400", ""},
		"a port":               {line("GET :81" + livez), "400", ""},
		"POST":                 {line("POST " + livez), "405", ""},
		"TRACE":                {line("TRACE " + livez), "405", ""},
		"OPTIONS":              {line("OPTIONS *"), "200", ""},
		"CONNECT":              {line("CONNECT " + inside), "404", ""},
		"CONNECT to the probe": {line("CONNECT " + livez), "405", ""},
		"no version":           {"GET " + livez + "\r\n\r\n", "400", ""},
		"HTTP/2 unasked":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400", ""},
		"no host":              {"GET " + livez + " HTTP/1.1\r\n\r\n", "400", ""},
		"two hosts":            {"GET " + livez + " HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", ""},
		"a host with a space":  {"GET " + livez + " HTTP/1.1\r\nHost: a b\r\n\r\n", "400", ""},
		"a folded header":      {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-A: 1\r\n GET /other HTTP/1.1\r\n\r\n", "200", fixed},
		"a space in a header":  {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\n", "400", ""},
		"two lengths":          {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!", "400", ""},
		"a negative length":    {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "400", ""},
		"an unknown coding":    {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", ""},
		"length and chunks":    {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /quitquitquit HTTP/1.1\r\nHost: x\r\n\r\n", "200", fixed},
		"a request in a body":  {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 42\r\n\r\nPOST /quitquitquit HTTP/1.1\r\nHost: x\r\n\r\n\r\n", "200", fixed},
		"a huge header":        {"GET " + livez + " HTTP/1.1\r\nHost: x\r\nX-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", "431", ""},
		"many headers":         {"GET " + livez + " HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: a\r\n", 12<<10) + "\r\n", "431", ""},
		"a huge path":          {line("GET " + livez + strings.Repeat("a", 80<<10)), "431", ""},
	} {
		if codes := raw(t, address, c.request); codes != c.codes {
			t.Errorf("%s: got status codes %q, want %q", name, codes, c.codes)
		}
		if asked := app.take(); asked != c.asked {
			t.Errorf("%s: the application received %q, want %q", name, asked, c.asked)
		}
	}
}

// TestSlowClients checks that the server closes the connections of clients that send too slowly.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	app := &recorder{}
	target := httptest.NewServer(app)
	t.Cleanup(target.Close)
	address := serveProbe(t, `{"httpGet": {"port": PORT}}`, portOfAddr(t, target.URL), nil)
	var clients sync.WaitGroup
	for name, begin := range map[string]string{
		"headers": "GET " + livez + " HTTP/1.1\r\nHost: x\r\nX-A: ",
		"line":    "GET /app-hea",
		"body":    "GET " + livez + " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
		"chunks":  "GET " + livez + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			begun := time.Now()
			dribble(conn, begin)
			most := readHeaderTimeout
			if name == "body" || name == "chunks" {
				most = readBodyTimeout // the server does not wait longer for a body
			}
			most += time.Minute // a busy machine
			if took := time.Since(begun); took > most {
				t.Errorf("%s: the connection stayed open for %s", name, took)
			}
		})
	}
	clients.Wait()
}

// dribble sends the beginning of a request, then single bytes until the server closes the
// connection.
func dribble(conn net.Conn, begin string) {
	defer func() { _ = conn.Close() }() // the server has closed it
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = io.Copy(io.Discard, conn)
	}()
	for more := begin; ; more = "a" {
		if _, err := io.WriteString(conn, more); err != nil {
			<-over
			return
		}
		select {
		case <-over:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// FuzzProbePath checks that the application receives only the configured path, whatever the
// request.
func FuzzProbePath(f *testing.F) {
	for _, target := range []string{
		livez, livez + "?a=b", "//" + livez, "/app-health/app%2Flivez", "/app-health/../" + livez, "http://h:1" + livez,
		prestop, "/app-health/%61pp/livez", livez + "/..", "*", "/app-health/app/livez;", "?", "/%2e%2e" + livez,
	} {
		f.Add("GET", target, "x", "X-A", "1")
	}
	f.Add("CONNECT", "h:1", "h:1", "Connection", "X-A")
	f.Add("GET", livez, "127.0.0.1:81", "X-Forwarded-Host", "127.0.0.1:81")
	app := &recorder{}
	target := httptest.NewServer(app)
	f.Cleanup(target.Close)
	_, port, err := net.SplitHostPort(target.Listener.Addr().String())
	if err != nil {
		f.Fatal(err)
	}
	probers, err := ParseProbers(`{"` + livez + `": {"httpGet": {"path": "/fixed?a=b", "port": ` + port + `}}}`)
	if err != nil {
		f.Fatal(err)
	}
	s := &Server{cfg: Config{Probers: probers, InstanceIP: "127.0.0.1", Logger: slog.New(slog.DiscardHandler)}}
	handler := s.handler()
	f.Fuzz(func(t *testing.T, method, target, host, name, value string) {
		text := method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n" + name + ": " + value + "\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(t.Context()))
		switch asked := app.take(); {
		case asked != "" && asked != fixed:
			t.Errorf("%q: the application received %q", text, asked)
		case asked != "" && r.URL.Path != livez:
			t.Errorf("%q: the request reached the application", text)
		}
	})
}
