// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// keyPair returns a certificate and its key as PEM.
func keyPair(t *testing.T, serial int64, notBefore, notAfter time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: notBefore, NotAfter: notAfter, IsCA: true, BasicConstraintsValid: true,
		URIs: []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/shop/sa/web"}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// realAdmin runs an Envoy with secrets, and returns the address of its admin port and a private key.
func realAdmin(t *testing.T) (admin, key string) {
	t.Helper()
	cert, key := keyPair(t, 0xabc, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	old, _ := keyPair(t, 0xdef, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	return runEnvoy(t, map[string]any{
		"admin": map[string]any{"address": socket("127.0.0.1", 0)},
		"static_resources": map[string]any{"secrets": []any{
			map[string]any{"name": "default", "tls_certificate": map[string]any{"certificate_chain": map[string]any{"inline_string": cert}, "private_key": map[string]any{"inline_string": key}}},
			map[string]any{"name": "ROOTCA", "validation_context": map[string]any{"trusted_ca": map[string]any{"inline_string": old}}},
		}},
	}), key
}

// socket returns an address in the configuration of an Envoy.
func socket(host string, port int) map[string]any {
	return map[string]any{"socket_address": map[string]any{"address": host, "port_value": port}}
}

// runEnvoy runs an Envoy with a configuration and further arguments, and returns the address of its admin port.
func runEnvoy(t *testing.T, bootstrap map[string]any, args ...string) (admin string) {
	t.Helper()
	dir := t.TempDir()
	config, err := json.Marshal(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	file, at := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	args = append(args, "-c", file, "--admin-address-path", at, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--component-log-level", "misc:error")
	cmd := exec.CommandContext(t.Context(), envoytest.Binary(t), args...)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the context has killed it
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(at)
		if err == nil && len(text) > 0 {
			return string(text)
		}
		if time.Now().After(deadline) {
			t.Fatalf("Envoy has not started: %v", err)
		}
	}
}

// TestProxyAdmin asks a real Envoy about its secrets, its bootstrap and its log levels.
func TestProxyAdmin(t *testing.T) {
	t.Parallel()
	admin, key := realAdmin(t)
	keyText := strings.Split(key, "\n")[1]
	for _, tc := range []struct {
		args string
		code int
		has  string // texts, separated by ~
	}{
		{"secrets", 1, "RESOURCE NAME   TYPE         STATUS    SERIAL NUMBER   NOT AFTER~ROOTCA          CA           EXPIRED   0def ~default         Cert Chain   ACTIVE    0abc "},
		{"secret -o wide", 1, "IDENTITY~spiffe://cluster.local/ns/shop/sa/web"},
		{"secrets -o json", 1, `"name": "default"~"serial_number": "0abc"~"status": "EXPIRED"`},
		{"bootstrap", 0, "portValue: 0~name: ROOTCA~[redacted]"},
		{"bootstrap -o json", 0, `"portValue": 0`},
		{"log", 0, "LOGGER ~\nrbac ~warning~\nmisc "},
		{"log --level nope=info", 1, `has no logger "nope"`},
		{"log --level rbac=loud", 2, `the level "loud" is unknown: write one of trace`},
		{"log --level debug --reset", 2, "exclude each other"},
		{"log --level info,rbac=debug,http:error -o json", 0, `"rbac": "debug"~"http": "error"~"admin": "info"`},
		{"log --reset -o yaml", 0, "rbac: warning~misc: error~admin: warning"},
		{"log", 0, "LOGGER "},
	} {
		out, errs, code := run(t, append(append([]string{"proxy"}, strings.Fields(tc.args)...), "--admin", admin)...)
		if code != tc.code {
			t.Errorf("%s: code %d, want %d: %s", tc.args, code, tc.code, errs)
		}
		for word := range strings.SplitSeq(tc.has, "~") {
			if !strings.Contains("\n"+out+errs, word) {
				t.Errorf("%s: lacks %q:\n%s%s", tc.args, word, out, errs)
			}
		}
		if strings.Contains(out+errs, keyText) {
			t.Errorf("%s prints the private key", tc.args)
		}
		if strings.HasSuffix(tc.args, "secrets") || tc.args == "log" {
			for line := range strings.Lines(out) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > tableWidth {
					t.Errorf("%s: a line has %d characters: %s", tc.args, n, line)
				}
			}
		}
	}
}

// TestProxyAdminInput checks wrong flags, and dumps that are not those of an Envoy.
func TestProxyAdminInput(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args, in string
		code     int
		has      string
	}{
		{"secrets", "", 2, "write PROXY, as in frontend.shop, or --admin HOST:PORT"},
		{"secrets -f - --admin 127.0.0.1:1", "", 2, "write PROXY, as in frontend.shop, or --admin HOST:PORT"},
		{"secrets -f -", "x", 1, "it is not a config_dump in JSON"},
		{"secrets -f -", `{"configs": []}`, 1, "has no SecretsConfigDump: write one of an Envoy, not of the control plane"},
		{"bootstrap -f -", `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": 1}]}`, 1, "read the part"},
		{"secrets -f -", `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump", "dynamic_warming_secrets": [{"name": "a\u001b[2J", "secret": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": "a"}}]}]}`, 1, "WARMING"},
		{"log", "", 2, "write PROXY, as in frontend.shop, or --admin HOST:PORT"},
		{"log --admin 127.0.0.1", "", 1, "missing port in address"},
	} {
		out, errs, code := runWith(t, tc.in, append([]string{"proxy"}, strings.Fields(tc.args)...)...)
		if code != tc.code || !strings.Contains(out+errs, tc.has) || strings.Contains(out+errs, "\x1b") {
			t.Errorf("%s: code %d, want %d with %q: %s", tc.args, code, tc.code, tc.has, fmt.Sprintf("%q", out+errs))
		}
	}
}
