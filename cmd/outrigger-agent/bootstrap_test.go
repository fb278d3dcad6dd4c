// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProxyTemplate checks that a real Envoy becomes ready with a bootstrap from a template.
func TestProxyTemplate(t *testing.T) {
	t.Parallel()
	path, err := filepath.Abs("../../bootstrap/testdata/templates/usual.json.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	marked := filepath.Join(t.TempDir(), "marked.json.tmpl")
	if err := os.WriteFile(marked, []byte(strings.Replace(string(text), `"node": {`, `"node": {"user_agent_name": "marked", `, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, "127.78.0.10", "", newControlPlane(t), "ISTIO_BOOTSTRAP="+marked)
	a.waitReady()
	if code, body := a.get(15000, "/server_info"); code != http.StatusOK || !strings.Contains(body, `"marked"`) {
		t.Errorf("/server_info: got %d %s, want 200 with \"marked\"", code, body)
	}
}
