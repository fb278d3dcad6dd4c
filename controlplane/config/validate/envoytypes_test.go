// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"go/parser"
	"go/token"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestEnvoyTypes checks that the list of imports contains every package of go-control-plane.
func TestEnvoyTypes(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "github.com/envoyproxy/go-control-plane/envoy/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "envoytypes.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	imported := map[string]bool{}
	for _, i := range file.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		imported[path] = true
	}
	for _, path := range strings.Fields(string(out)) {
		v3 := strings.HasSuffix(path, "/v3") || strings.HasSuffix(path, "/v3alpha")
		switch {
		case !v3, strings.Contains(path, "/envoy/service/"):
		case strings.HasSuffix(path, "/access_loggers/open_telemetry/v3"), strings.HasSuffix(path, "/stat_sinks/open_telemetry/v3"):
			// These would require the module of the OpenTelemetry protocol.
		case !imported[path]:
			t.Errorf("envoytypes.go does not import %s", path)
		}
	}
}
