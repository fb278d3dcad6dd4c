// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// balancing is an Envoy before applications on loopback addresses.
type balancing struct {
	client *http.Client
}

// newBalancing runs an Envoy with the objects of a text, for the proxy at an address. Mutual TLS
// of the mesh is disabled.
func newBalancing(t *testing.T, address, text string, change func(*model.Proxy)) *balancing {
	t.Helper()
	return newBalancingOf(t, New(Config{}), address, text, change)
}

// newBalancingOf does the same with the settings of a generator.
func newBalancingOf(t *testing.T, g *Generator, address, text string, change func(*model.Proxy)) *balancing {
	t.Helper()
	binary := envoytest.Binary(t)
	settings := meshconfig.Default()
	settings.EnableAutoMtls = wrapperspb.Bool(false)
	mesh := snapshot.Build(nil, inputOf(decode(t, strings.TrimSpace(text)), settings), model.Change{All: true})
	for _, p := range mesh.Problems {
		if !p.Warning {
			t.Errorf("a problem of the objects: %s", p)
		}
	}
	proxy := proxyAt(address)
	at := freePorts(t, address, 1)[0]
	port, err := strconv.ParseUint(at, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	proxy.HTTPProxyPort = uint32(port)
	if change != nil {
		change(proxy)
	}
	runEnvoy(t, binary, secretsFromFiles(t, staticBootstrapOf(t, g, mesh, proxy)), address+":"+at)
	return &balancing{client: &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: address + ":" + at}), MaxIdleConnsPerHost: 64,
	}}}
}

// get requests a page, and returns the status and the first word of the response.
func (b *balancing) get(t *testing.T, target, header string) (status int, word string) {
	t.Helper()
	status, body := get(t, b.client, target, header)
	word, _, _ = strings.Cut(body, " ")
	return status, word
}

// failing is an application that always responds with a status.
func failing(t *testing.T, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(s.Close)
	return portOf(t, s.Listener.Addr())
}

func portOf(t testing.TB, addr net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// secretsFromFiles replaces the agent: it serves the secrets that name files. Envoy reads each
// secret from a file.
func secretsFromFiles(t *testing.T, bootstrap []byte) []byte {
	t.Helper()
	return withSecrets(t, t.TempDir(), bootstrap, secretOf)
}

// withSecrets makes Envoy read each secret of a configuration from a separate file in a directory.
func withSecrets(t testing.TB, dir string, bootstrap []byte, secretOf func(t testing.TB, name string) map[string]any) []byte {
	t.Helper()
	var tree any
	d := json.NewDecoder(bytes.NewReader(bootstrap))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, e := range v {
				walk(e)
			}
			name, ok := v["name"].(string)
			if _, sds := v["sdsConfig"]; !ok || !sds {
				return
			}
			path := filepath.Join(dir, fmt.Sprintf("secret-%x.json", sha256.Sum256([]byte(name))))
			b, err := json.Marshal(map[string]any{"resources": []any{secretOf(t, name)}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			v["sdsConfig"] = map[string]any{"resource_api_version": "V3", "path_config_source": map[string]any{"path": path}}
		}
	}
	walk(tree)
	b, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// secretOf returns the secret that a file name refers to.
func secretOf(t testing.TB, name string) map[string]any {
	t.Helper()
	file := func(path string) map[string]any { return map[string]any{"filename": path} }
	out := map[string]any{"@type": xds.TypeSecret, "name": name}
	if roots, ok := strings.CutPrefix(name, snapshot.ConfigMapScheme); ok {
		name = "file-root:" + strings.TrimSuffix(roots, "-cacert") // the file contains what the ConfigMap does
	}
	if roots, ok := strings.CutPrefix(name, "file-root:"); ok {
		if roots == "system" {
			roots = "/etc/ssl/certs/ca-certificates.crt"
		}
		out["validation_context"] = map[string]any{"trusted_ca": file(roots)}
		return out
	}
	chain, key, ok := strings.Cut(strings.TrimPrefix(name, "file-cert:"), "~")
	if !ok {
		t.Fatalf("the secret %q names no files", name)
	}
	out["tls_certificate"] = map[string]any{"certificate_chain": file(chain), "private_key": file(key)}
	return out
}
