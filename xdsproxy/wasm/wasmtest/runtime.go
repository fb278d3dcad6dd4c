// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasmtest

import (
	"os/exec"
	"strings"
	"testing"
)

// withWasm is a bootstrap with a Wasm filter. Its code is not a module: only Envoy's message about
// the runtime matters.
const withWasm = `static_resources:
  listeners:
  - name: l
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          route_config: {}
          http_filters:
          - name: wasm
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
              config: {vm_config: {runtime: envoy.wasm.runtime.v8, code: {local: {inline_string: x}}}}
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

// NeedRuntime skips a test if the Envoy binary was built without a Wasm runtime.
func NeedRuntime(t *testing.T, binary string) {
	t.Helper()
	// An error is expected, because the code is not a module.
	out, _ := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-l", "warning", "--config-yaml", withWasm).CombinedOutput()
	if strings.Contains(string(out), "Envoy was compiled without support for it") {
		t.Skipf("%s has no Wasm runtime", binary)
	}
	if !strings.Contains(string(out), "Wasm") {
		t.Fatalf("%s does not report on Wasm: %s", binary, out)
	}
}
