// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	udpaannotations "github.com/cncf/xds/go/udpa/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// announced announces a mesh with proxies on this machine, whose control plane does not answer. It returns the
// address of the control plane.
func announced(t *testing.T, proxies string) (control string) {
	t.Helper()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	control = listenNowhere(t)
	for name, text := range map[string]string{
		"state/proxies": proxies, "state/log/control.log": "kept-line\nAuthorization: Bearer planted-log-token\n",
		"outrigger-run-1": "\n" + control + "\n" + filepath.Join(temp, "state/control/config") + "\nnone\nmesh.yaml\n1\n",
	} {
		path := filepath.Join(temp, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(filepath.Join(temp, "outrigger-run-1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // only a lock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return control
}

// agentAt serves the status port of an agent at a host.
func agentAt(t *testing.T, host string, answers map[string]string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, agentPort))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		switch {
		case r.URL.Path == "/healthz/ready":
			w.WriteHeader(http.StatusServiceUnavailable)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, text) // the test sees what is missing
	}))
	_ = server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
}

// plantedBootstrap returns the configuration of an Envoy with secrets in many places. Each has the text
// planted in it, except a private key.
func plantedBootstrap(t *testing.T, host string) (bootstrap map[string]any, key string) {
	t.Helper()
	cert, key := keyPair(t, 1, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	text := func(s string) map[string]any { return map[string]any{"inline_string": s} }
	typed := func(name string, fields map[string]any) map[string]any {
		fields["@type"] = "type.googleapis.com/envoy.extensions." + name
		return fields
	}
	ticket := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("planted-ticket--", 5)))
	route := map[string]any{
		"match": map[string]any{"prefix": "/kept-path", "headers": []any{map[string]any{"name": "cookie", "string_match": map[string]any{"exact": "planted-cookie"}}}},
		"route": map[string]any{"cluster": "kept-cluster"},
		"request_headers_to_add": []any{
			map[string]any{"header": map[string]any{"key": "authorization", "value": "Basic planted0123456789"}},
			map[string]any{"header": map[string]any{"key": "x-api-key", "value": "planted-key"}},
		},
	}
	manager := typed("filters.network.http_connection_manager.v3.HttpConnectionManager", map[string]any{
		"stat_prefix": "a", "route_config": map[string]any{"virtual_hosts": []any{map[string]any{"name": "a", "domains": []any{"*"}, "routes": []any{route}}}},
		"http_filters": []any{map[string]any{"name": "router", "typed_config": typed("filters.http.router.v3.Router", map[string]any{})}},
	})
	chain := map[string]any{
		"filters": []any{map[string]any{"name": "http", "typed_config": manager}},
		"transport_socket": map[string]any{"name": "tls", "typed_config": typed("transport_sockets.tls.v3.DownstreamTlsContext", map[string]any{
			"session_ticket_keys": map[string]any{"keys": []any{map[string]any{"inline_bytes": ticket}}},
			"common_tls_context":  map[string]any{"tls_certificates": []any{map[string]any{"certificate_chain": text(cert), "private_key": text(key)}}},
		})},
	}
	return map[string]any{
		"node": map[string]any{"id": "sidecar~" + host + "~web.shop~x", "cluster": "web", "metadata": map[string]any{
			"PROXY_CONFIG": map[string]any{"proxyMetadata": map[string]any{"DB_PASSWORD": "planted-env", "DB_URL": "redis://:planted-url@redis:6379"}},
		}},
		"admin": map[string]any{"address": socket(host, 15000)},
		"static_resources": map[string]any{
			"listeners": []any{map[string]any{"name": "kept-listener", "address": socket(host, 0), "filter_chains": []any{chain}}},
			"clusters":  []any{map[string]any{"name": "kept-cluster", "type": "STATIC"}},
			"secrets":   []any{map[string]any{"name": "kept-secret", "generic_secret": map[string]any{"secret": text("planted-generic")}}},
		},
	}, key
}

// TestWithoutControlPlane finds the proxies of outrigger up while its control plane is dead: a report has what
// their Envoys and agents say without the secrets planted there, and proxy asks them by name.
func TestWithoutControlPlane(t *testing.T) {
	const host = "127.77.60.2"
	control := announced(t, "web shop "+host+"\ngone shop 127.77.60.3\n")
	bootstrap, key := plantedBootstrap(t, host)
	runEnvoy(t, bootstrap, "--config-yaml", `node: {metadata: {SOME_TOKEN: planted-yaml}}`)
	agentAt(t, host, map[string]string{
		"/healthz/ready": "kept-not-ready", "/debug/outage": `{"kept":"outage","token":"planted-agent"}`, "/debug/config": `{"node":{"id":"x"}}`, "/debug/logging": "xdsproxy: info\n",
	})
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	out, errs, code := run(t, "bug-report", "--file", name, "--control", control)
	if code != 0 {
		t.Fatalf("code %d: %s%s", code, errs, out)
	}
	files := filesOf(t, name)
	keyLine := strings.Split(key, "\n")[1]
	for file, text := range files {
		for _, secret := range []string{"planted", keyLine, base64.StdEncoding.EncodeToString([]byte("planted"))[:8]} {
			if strings.Contains(text, secret) {
				t.Errorf("%s contains the secret %q", file, secret)
			}
		}
	}
	const dir = "outrigger-report/proxies/web.shop/"
	for file, want := range map[string]string{
		dir + "envoy-config_dump.json": "kept-path", dir + "envoy-clusters.json": "kept-cluster", dir + "envoy-listeners.json": "kept-listener",
		dir + "envoy-stats.json": "server.uptime", dir + "envoy-server_info.json": `"state": "LIVE"`, dir + "envoy-certs.json": "certificates",
		dir + "agent-ready.txt": "kept-not-ready", dir + "agent-outage.json": `"kept": "outage"`,
		"outrigger-report/" + reportDir(control) + "/log/control.log": "kept-line",
		"outrigger-report/manifest.json":                              `"name": "proxies/web.shop/agent-xds.json",` + "\n   \"why\": \"it returned 404:\"",
	} {
		if !strings.Contains(files[file], want) {
			t.Errorf("%s lacks %q:\n%.3000s", file, want, files[file])
		}
	}
	if dump := files[dir+"envoy-config_dump.json"]; !strings.Contains(dump, "EndpointsConfigDump") || strings.Count(dump, redact.Mark) < 6 {
		t.Errorf("the dump has no endpoints, or fewer secrets than were planted:\n%s", dump)
	}
	for _, want := range []string{"missing    " + reportDir(control) + "/proxies.json: ", "missing    proxies/gone.shop/agent-ready.txt: ", "collected  proxies/web.shop: 10 files\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	const note = "No control plane answers (dial tcp "
	for _, tc := range []struct {
		args string
		code int
		has  string
	}{
		{"clusters web --live", 0, "kept-cluster"},
		{"log web.shop", 0, "rbac"},
		{"log web --agent", 0, "xdsproxy"},
		{"secrets web", 0, "kept-secret"},
		{"bootstrap web", 0, "kept-listener"},
		{"clusters gone --live", 1, "127.77.60.3:15000"},
		{"clusters nobody --live", 1, `no proxy "nobody" is connected; there are: gone.shop, web.shop`},
	} {
		out, errs, code := run(t, append(append([]string{"proxy"}, strings.Fields(tc.args)...), "--control", control)...)
		if code != tc.code || !strings.Contains(out+errs, tc.has) || !strings.Contains(errs, note+control) || strings.Count(errs, "\n") > 1 {
			t.Errorf("%s: code %d, want %d with %q and %q: %s%s", tc.args, code, tc.code, tc.has, note, out, errs)
		}
	}
}

// TestSensitiveFields checks that a report hides every field that Envoy's API marks as sensitive, by its name
// in either form.
func TestSensitiveFields(t *testing.T) {
	t.Parallel()
	holder := map[string]string{"typed_config": "private_key_provider", "keys": "session_ticket_keys"}
	n := 0
	check := func(m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			field := m.Fields().Get(i)
			if marked, ok := proto.GetExtension(field.Options(), udpaannotations.E_Sensitive).(bool); !ok || !marked {
				continue
			}
			n++
			for _, name := range []string{field.TextName(), field.JSONName()} {
				var value any = "planted"
				if field.Message() != nil {
					value = map[string]any{"inline_bytes": "planted", "inlineString": "planted"}
				}
				if field.IsList() {
					value = []any{value}
				}
				value = map[string]any{name: value}
				if in := holder[field.TextName()]; in != "" {
					value = map[string]any{in: value}
				}
				raw, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				if text := withoutSecrets(raw); strings.Contains(string(text), "planted") {
					t.Errorf("%s: %s", field.FullName(), text)
				}
			}
		}
	}
	var all func(list protoreflect.MessageDescriptors)
	all = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			check(list.Get(i))
			all(list.Get(i).Messages())
		}
	}
	if text := withoutSecrets([]byte(`{"credentials": [{"key": "planted", "client": "a"}]}`)); strings.Contains(string(text), "planted") {
		t.Errorf("API keys: %s", text)
	}
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool { all(f.Messages()); return true })
	if n < 5 {
		t.Errorf("only %d sensitive fields were found", n)
	}
}
