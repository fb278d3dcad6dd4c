// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xds

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// luaConfig is a configuration with an HTTP filter, of which %s is the type and the fields.
const luaConfig = `{"static_resources": {"listeners": [{"name": "a", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, "filter_chains": [{"filters": [{"name": "hcm",
	"typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "a", "route_config": {"name": "a"}, "http_filters": [
		{"name": "lua", "typed_config": {"@type": "type.googleapis.com/%s}},
		{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`

// TestWithoutScripts checks with the real Envoy that no code runs where a configuration is validated,
// and that its syntax is.
func TestWithoutScripts(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	const filter = `envoy.extensions.filters.http.lua.v3.Lua`
	for name, tc := range map[string]struct{ fields, problem string }{
		"inline":       {filter + `", "defaultSourceCode": {"inlineString": "RUN"}`, ""},
		"bytes":        {filter + `", "default_source_code": {"inline_bytes": "BYTES"}`, ""},
		"of a name":    {filter + `", "source_codes": {"own": {"inline_string": "RUN"}}`, ""},
		"file":         {filter + `", "default_source_code": {"filename": "FILE"}`, ""},
		"TypedStruct":  {`xds.type.v3.TypedStruct", "type_url": "type.googleapis.com/` + filter + `", "value": {"default_source_code": {"inline_string": "RUN"}}`, ""},
		"quotes":       {filter + `", "defaultSourceCode": {"inlineString": "local a = [==[ \"\\n]==] end RUN"}`, "'<eof>' expected near 'end'"},
		"wrong syntax": {filter + `", "defaultSourceCode": {"inlineString": "RUN function ("}`, "script:1: '<name>' expected near '('"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ran, script := filepath.Join(dir, "ran"), filepath.Join(dir, "script.lua")
			run := "os.execute('touch " + ran + "')"
			if err := os.WriteFile(script, []byte(run), 0o600); err != nil {
				t.Fatal(err)
			}
			fields := strings.NewReplacer("RUN", run, "BYTES", base64.StdEncoding.EncodeToString([]byte(run)), "FILE", script).Replace(tc.fields)
			validate := func(config []byte) string {
				path := filepath.Join(dir, "envoy.json")
				if err := os.WriteFile(path, config, 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", path, "--log-level", "error").CombinedOutput()
				if err == nil {
					return ""
				}
				return string(out)
			}
			config := fmt.Appendf(nil, luaConfig, fields)
			safe, err := WithoutScripts(config)
			if err != nil {
				t.Fatal(err)
			}
			got := validate(safe)
			if got != "" != (tc.problem != "") || !strings.Contains(got, tc.problem) {
				t.Errorf("Envoy says %q, want %q", got, tc.problem)
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("a script ran")
			}
			validate(config)
			if _, err := os.Stat(ran); tc.problem == "" && err != nil {
				t.Error("the script does not run otherwise: the case shows nothing")
			}
		})
	}
}
