// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// TestProxyByName asks the Envoys and agents of named proxies, on this machine and in pods.
func TestProxyByName(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "include_eds" {
			_, _ = w.Write([]byte(savedDump())) // see below
			return
		}
		_, _ = w.Write([]byte(strings.TrimPrefix(r.Method+" "+r.URL.String(), "POST ") + "\nactive loggers:\n  rbac: info\n  xdsproxy: info\n")) // see savedDump
	}))
	t.Cleanup(agent.Close)
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report.Replica{Proxies: []report.Proxy{
			{Name: "web-1.shop", Namespace: "shop", Addresses: []string{"203.0.113.7"}},
			{Name: "local.shop", Namespace: "shop", Addresses: []string{"127.77.51.77"}},
			{Name: "vm", Namespace: "shop", Addresses: []string{"203.0.113.8"}},
		}})
	}))
	t.Cleanup(control.Close)
	// The kubectl of the test leads to the agent, and does not end by itself.
	dir := t.TempDir()
	_, port, _ := net.SplitHostPort(agent.Listener.Addr().String())
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/calls\n[ $4 != pod/web-1 ] && echo 'pods \"x\" not found' >&2 && exit 1\n" +
		"echo \"Forwarding from 127.0.0.1:" + port + " -> ${5#:}\"\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	at := strings.TrimPrefix(control.URL, "http://")
	for _, tc := range []struct {
		args string
		code int
		has  string
	}{
		{"log web-1", 0, "rbac"},
		{"log web -n shop", 1, `no proxy "web.shop" is connected; there are: local.shop, vm, web-1.shop`},
		{"log web-1 --level rbac=debug", 0, "rbac"},
		{"log web-1 --agent --level xdsproxy=debug", 0, "xdsproxy"},
		{"log web-1 --agent --level xdsproxy:warning", 2, `the level "warning" is unknown: write one of debug, info, warn, error, none`},
		{"log " + agent.Listener.Addr().String() + " --agent", 0, "xdsproxy"},
		{"log --agent", 2, "write PROXY"},
		{"log --agent --admin 127.0.0.1:1", 2, "--admin is that of an Envoy"},
		{"log web-1 --admin 127.0.0.1:1", 2, "write PROXY"},
		{"secrets web-1", 1, "it is not a config_dump in JSON"},
		{"bootstrap vm", 1, "is on another machine, and is no pod by its name"},
		{"bootstrap local", 1, "127.77.51.77:15000"},
		{"clusters local --diff", 1, "config"},
		{"clusters web-1 --live", 0, "xds-grpc"},
		{"clusters vm --live", 1, "is on another machine, and is no pod by its name: run the command on that machine"},
		{"clusters local --live", 1, "; outrigger status local says how the proxy is"},
		{"clusters --live", 2, "no proxy is named"},
		{"clusters local --live --diff", 2, "leave out --diff, -f and --admin"},
	} {
		out, errs, code := run(t, append(append([]string{"proxy"}, strings.Fields(tc.args)...), "--control", at)...)
		if code != tc.code || !strings.Contains(out+errs, tc.has) {
			t.Errorf("%s: code %d, want %d with %q: %s%s", tc.args, code, tc.code, tc.has, out, errs)
		}
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || !strings.Contains(string(calls), "port-forward --namespace=shop --address=127.0.0.1 pod/web-1 :15000\n") || !strings.Contains(string(calls), " pod/web-1 :15020\n") {
		t.Errorf("kubectl was called with %q, %v", calls, err)
	}
	// A kubectl that fails, and one that does not answer.
	p := proxy{name: "gone.shop", namespace: "shop", agent: "203.0.113.9:15020"}
	if _, _, err := p.reach(t.Context(), adminPort, time.Minute); err == nil || !strings.Contains(err.Error(), `pods "x" not found`) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	if _, _, err := p.reach(t.Context(), adminPort, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no answer in 50ms") {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if _, _, err := p.reach(t.Context(), adminPort, time.Minute); err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Errorf("got %v", err)
	}
}
