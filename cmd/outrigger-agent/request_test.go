// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
			http.NotFound(w, r)
		case "/silent":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/cut":
			w.Header().Set("Content-Length", "100")
		case "/here":
			http.Redirect(w, r, "/there?a=b", http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			body, _ := io.ReadAll(r.Body) // part of the body suffices
			_, _ = fmt.Fprintf(w, "%s %s %s\n", r.Method, r.URL, body)
		}
	}))
	t.Cleanup(server.Close)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	_ = free.Close() // no server listens there any more
	address := strings.TrimPrefix(server.URL, "http://")
	for name, tc := range map[string]struct {
		q             question
		want, wantErr string
	}{
		"plain":                    {q: question{method: "GET", path: "stats"}, want: "GET /stats \n"},
		"slash and query":          {q: question{method: "GET", path: "/stats?filter=^a&b"}, want: "GET /stats?filter=^a&b \n"},
		"one slash only":           {q: question{method: "GET", path: "//stats"}, want: "GET //stats \n"},
		"body":                     {q: question{method: "POST", path: "logging", body: "the body"}, want: "POST /logging the body\n"},
		"redirected":               {q: question{method: "GET", path: "here"}, want: "GET /there?a=b \n"},
		"redirect to another host": {q: question{method: "GET", path: "away"}, wantErr: "redirects to another address, http://127.0.0.1:1/"},
		"redirect loop":            {q: question{method: "GET", path: "round"}, wantErr: "endless chain of redirects"},
		"not found":                {q: question{method: "GET", path: "none"}, wantErr: "request GET http://" + address + "/none: the response is 404 Not Found: 404 page not found"},
		"error, no body":           {q: question{method: "GET", path: "silent"}, wantErr: "the response is 503 Service Unavailable"},
		"truncated response":       {q: question{method: "GET", path: "cut"}, wantErr: "copy the response: unexpected EOF"},
		"bad method":               {q: question{method: "G T", path: "x"}, wantErr: `request G T "x": net/http: invalid method`},
		"bad path":                 {q: question{method: "GET", path: "%zz"}, wantErr: `request GET "%zz": parse`},
		"nobody":                   {q: question{address: closed, method: "GET", path: "x"}, wantErr: "nothing listens there: is the proxy running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.q.address == "" {
				tc.q.address = address
			}
			var out bytes.Buffer
			err := request(t.Context(), &out, tc.q)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("got error %v, want one with %q", err, tc.wantErr)
			}
			if out.String() != tc.want {
				t.Errorf("got output %q, want %q", out.String(), tc.want)
			}
		})
	}
}

func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := request(ctx, io.Discard, question{address: strings.TrimPrefix(server.URL, "http://"), method: "GET", path: "x"})
	if err == nil || !strings.Contains(err.Error(), "no complete response within 1m0s") {
		t.Errorf("got error %v, want a timeout of 1m0s", err)
	}
}

// TestDrains checks that only the request that waits for the end of the drain has no time limit.
func TestDrains(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"15020 POST drain": true, "15020 POST /drain": true, "15020 POST /drain?x": true, "15099 POST drain": true, "15098 POST drain": false,
		"15020 GET drain": false, "15000 POST drain": false, "15020 POST drain/x": false, "15020 POST quitquitquit": false, "15000 POST drain_listeners": false,
	} {
		var port int
		var q question
		if _, err := fmt.Sscan(in, &port, &q.method, &q.path); err != nil {
			t.Fatal(err)
		}
		if got := drains(port, 15099, q); got != want {
			t.Errorf("drains() of %s = %v", in, got)
		}
	}
}

// TestRequestWaitsForDrain checks that the command waits for a long drain until a signal ends it.
// Hooks of pods have the status port of the pod.
func TestRequestWaitsForDrain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		address, port string
		environ       []string
	}{
		"default":      {address: "127.77.43.2", port: "15020"},
		"another port": {address: "127.77.43.3", port: "15099", environ: []string{`PROXY_CONFIG={"statusPort":15099,"statsdUdpAddress":"statsd.invalid:8125"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requestDrain(t, tc.address, tc.port, tc.environ)
		})
	}
}

func requestDrain(t *testing.T, address, port string, environ []string) {
	t.Helper()
	listener, err := net.Listen("tcp", address+":"+port)
	if err != nil {
		t.Fatal(err)
	}
	asked, release := make(chan struct{}), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
			_, _ = io.WriteString(w, "drained\n") // the test checks the response
		case <-r.Context().Done():
		}
	})}
	go func() { _ = server.Serve(listener) }() // returns when the server is closed
	t.Cleanup(func() { _ = server.Close() })
	ask := func(ctx context.Context) (string, error) {
		root := newRootCommand(process{environ: append(environ, "OUTRIGGER_BIND_ADDRESS="+address)})
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs([]string{"request", "--debug-port=" + port, "POST", "drain"})
		err := root.ExecuteContext(ctx)
		return out.String(), err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := ask(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v after a signal, want context.Canceled", err)
	}
	go func() {
		<-asked
		close(release)
	}()
	if out, err := ask(t.Context()); out != "drained\n" || err != nil {
		t.Errorf("got %q, error %v; want drained", out, err)
	}
}

func TestUnanswered(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"no connection within 5s":          &url.Error{Err: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}},
		"no complete response within 1m0s": &url.Error{Err: context.DeadlineExceeded},
		"nothing listens there: is":        &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		"read: connection reset by peer":   &net.OpError{Op: "read", Err: syscall.ECONNRESET},
	} {
		if got := unanswered(err); !strings.Contains(got.Error(), want) {
			t.Errorf("unanswered() = %v, want %s", got, want)
		}
	}
}

// program runs the program under a name, and returns its output and exit code.
func program(t *testing.T, name string, environ []string, args ...string) (out, errs string, code int) {
	t.Helper()
	link := filepath.Join(t.TempDir(), name)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, args...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append([]string{"OUTRIGGER_TEST_ROLE=agent"}, environ...), &stdout, &stderr
	_ = cmd.Run() // the caller checks the exit code
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// TestRequestCommand runs the command like a user, at the address in the environment.
func TestRequestCommand(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.77.9.1:15004")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Method+" "+r.URL.Path) // the test checks the output
	})}
	go func() { _ = server.Serve(listener) }() // returns when the server is closed
	t.Cleanup(func() { _ = server.Close() })
	here := []string{"OUTRIGGER_BIND_ADDRESS=127.77.9.1", "HTTP_PROXY=http://127.77.9.1:1"}
	for name, tc := range map[string]struct {
		environ   []string
		args      string
		out, errs string
		code      int
	}{
		"answer":     {environ: here, args: "request get healthz --debug-port 15004", out: "GET /healthz"},
		"nobody":     {environ: here, args: "request GET x", errs: "http://127.77.9.1:15000/x: nothing listens there", code: exitError},
		"other port": {environ: here, args: "request GET x --debug-port 8080", errs: "--debug-port is 8080; it must be one of 15000 15004 15020 15021", code: exitError},
		"debug port": {environ: append(here, "PROXY_XDS_DEBUG_VIA_AGENT_PORT=25004"), args: "request GET debug/syncz --debug-port 25004", errs: "http://127.77.9.1:25004/debug/syncz: nothing listens there", code: exitError},
		"elsewhere": {
			environ: []string{"OUTRIGGER_BIND_ADDRESS=192.0.2.1", "PROXY_XDS_DEBUG_VIA_AGENT_PORT=25004"}, args: "request GET debug/syncz --debug-port 25004",
			errs: "http://127.0.0.1:25004/debug/syncz: nothing listens there", code: exitError,
		},
		"no path":     {args: "request GET", errs: "needs a method and a path", code: exitError},
		"many words":  {args: "request POST a b c", errs: "put the body in quotes", code: exitError},
		"bad address": {environ: []string{"OUTRIGGER_BIND_ADDRESS=here"}, args: "request GET x", errs: `OUTRIGGER_BIND_ADDRESS is "here"`, code: exitError},
		"help":        {args: "request --help", out: "outrigger-agent request GET config_dump"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := program(t, ownName, tc.environ, strings.Fields(tc.args)...)
			if !strings.Contains(out, tc.out) || !strings.Contains(errs, tc.errs) || code != tc.code {
				t.Errorf("got exit code %d, output %q, errors %q", code, out, errs)
			}
			if code != 0 && out != "" {
				t.Errorf("output in addition to an error: %q", out)
			}
		})
	}
}

// TestPilotAgentName checks that the program behaves the same under the name of the program that it
// replaces, and uses that name in its help.
func TestPilotAgentName(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]string{
		"version": "version -s", "unknown command": "nonsense", "unknown flag": "--new version -s", "no proxy": "request GET x --debug-port 1",
		"help": "--help", "help of proxy": "proxy --help", "help of wait": "help wait", "words": "__complete proxy --proxyLog",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := program(t, ownName, nil, strings.Fields(args)...)
			peerOut, peerErrs, peerCode := program(t, peerName, nil, strings.Fields(args)...)
			if peerCode != code {
				t.Errorf("exit code under the other name: got %d, want %d", peerCode, code)
			}
			same := func(own, peer string) {
				if normal := strings.NewReplacer(ownName, "X", "outrigger_agent", "X", peerName, "X", "pilot_agent", "X"); normal.Replace(own) != normal.Replace(peer) {
					t.Errorf("%q differs from %q", peer, own)
				}
			}
			same(out, peerOut)
			same(errs, peerErrs)
			if strings.Contains(peerErrs, ownName) {
				t.Errorf("the messages contain the program's own name: %q", peerErrs)
			}
		})
	}
	if out, _, _ := program(t, peerName, nil, "proxy", "--help"); !strings.Contains(out, "pilot-agent proxy sidecar --domain") || !strings.Contains(out, "pilot-agent proxy [sidecar|router|waypoint]") {
		t.Errorf("usage: got\n%s", out)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, errs, code := program(t, ownName, nil, "completion", shell, "--no-descriptions"); code != exitOK || !strings.Contains(out, ownName) || errs != "" {
			t.Errorf("%s: got exit code %d, %d bytes, errors %q", shell, code, len(out), errs)
		}
	}
	if out, _, code := program(t, peerName, nil, "completion", "bash"); code != exitOK || !strings.Contains(out, "complete -o default -F __start_pilot-agent pilot-agent") {
		t.Errorf("under the name pilot-agent: got exit code %d, %d bytes", code, len(out))
	}
	for args, want := range map[string]string{
		"re": "request", "proxy ro": "router", "proxy --outl": "--outlierLogPath", "request GET x --deb": "--debug-port",
	} {
		if out, _, code := program(t, ownName, nil, append([]string{"__complete"}, strings.Fields(args)...)...); code != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("completion of %q: got %q, want %s", args, out, want)
		}
	}
}
