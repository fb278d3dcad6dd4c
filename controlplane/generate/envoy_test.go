// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/wasm/wasmtest"
)

// TestEnvoyAccepts validates the resources of every case with the real Envoy.
func TestEnvoyAccepts(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	for _, c := range testCases(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			validateOf(t, binary, New(c.settings), c.build(), c.proxy)
		})
	}
}

// newFields are fields that a supported Envoy may not know yet: the minor version of 1.x that
// added them, and the JSON to remove for older ones. Envoy ignores unknown fields over xDS, but
// not in a static file. docs/compatibility.md lists what does not work with an older Envoy.
var newFields = []struct {
	since int
	field *regexp.Regexp
}{
	{38, regexp.MustCompile(`"noContextPropagation":true,?`)},
	{39, regexp.MustCompile(`"budgetInterval":"[0-9.]+s",?`)},
}

// validateWithEnvoy fails unless Envoy accepts the resources of a proxy without deprecation
// warnings.
func validateWithEnvoy(t *testing.T, binary string, mesh *snapshot.Mesh, proxy *model.Proxy) {
	t.Helper()
	validateOf(t, binary, New(Config{}), mesh, proxy)
}

// validateOf does the same with the settings of a generator.
func validateOf(t *testing.T, binary string, g *Generator, mesh *snapshot.Mesh, proxy *model.Proxy) {
	t.Helper()
	known := *proxy
	known.Envoy = "1." + strconv.Itoa(envoyMinor(t)) + ".0"
	validateConfig(t, binary, staticBootstrapOf(t, g, mesh, &known))
}

// validateConfig does the same for a static configuration.
func validateConfig(t *testing.T, binary string, config []byte) {
	t.Helper()
	for _, f := range newFields {
		if envoyMinor(t) < f.since {
			config = f.field.ReplaceAll(config, nil)
		}
	}
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", path, "--concurrency", "1").CombinedOutput()
	if err != nil && bytes.Contains(config, []byte("envoy.wasm.runtime")) {
		wasmtest.NeedRuntime(t, binary)
	}
	if err != nil {
		t.Fatalf("envoy refuses the configuration: %v\n%s", err, out)
	}
	if strings.Contains(strings.ToLower(string(out)), "deprecated") {
		t.Errorf("envoy finds deprecated fields:\n%s", out)
	}
}

// printed is what envoy --version prints. Many tests ask, and starting Envoy takes a tenth of a second.
var printed struct {
	sync.Once
	out []byte
	err error
}

// envoyVersion returns the version that the Envoy of the tests prints.
func envoyVersion(t testing.TB) string {
	t.Helper()
	binary := envoytest.Binary(t)
	printed.Do(func() { printed.out, printed.err = exec.Command(binary, "--version").Output() })
	if printed.err != nil {
		t.Fatalf("envoy --version: %v", printed.err)
	}
	return string(printed.out)
}

// envoyMinor returns the x of Envoy 1.x.
func envoyMinor(t testing.TB) int {
	t.Helper()
	out := envoyVersion(t)
	match := regexp.MustCompile(`/1\.(\d+)\.\d+`).FindStringSubmatch(out)
	if match == nil {
		t.Fatalf("envoy --version names no version: %s", out)
	}
	minor, err := strconv.Atoi(match[1])
	if err != nil {
		t.Fatal(err)
	}
	return minor
}

// staticBootstrap returns a static configuration with all resources.
func staticBootstrap(t testing.TB, mesh *snapshot.Mesh, proxy *model.Proxy) []byte {
	t.Helper()
	return staticBootstrapOf(t, New(Config{}), mesh, proxy)
}

// staticBootstrapOf does the same with the settings of a generator.
func staticBootstrapOf(t testing.TB, g *Generator, mesh *snapshot.Mesh, proxy *model.Proxy) []byte {
	t.Helper()
	b, err := xds.Static(func(typeURL string) *xds.Set { return g.Generate(mesh, proxy, typeURL) }, func(r *xds.Resource) (*anypb.Any, error) {
		return inlinePlugin(t, r), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
