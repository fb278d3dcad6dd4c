// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLogTargets checks that the log goes to the targets of the flags, also as JSON, and
// contains no secrets.
func TestLogTargets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.log")
	environ := []string{
		"PROXY_CONFIG={proxyMetadata: {A: s3cr3t}, configPath: " + dir + ", tracing: {lightstep: {accessToken: s3cr3t, address: 'a:1'}}}", "XDS_HEADER_X=s3cr3t", "CA_HEADER_X=s3cr3t",
		"OUTRIGGER_BIND_ADDRESS=127.77.43.1", "POD_NAMESPACE=ns", "XDS_ROOT_CA=" + filepath.Join(dir, "none"), "ISTIO_META_TOKEN=s3cr3t",
		`ISTIO_KUBE_APP_PROBERS={"/app-health/a/livez":{"httpGet":{"port":1,"httpHeaders":[{"name":"x","value":"s3cr3t"}]}}}`, "TERMINATION_DRAIN_DURATION_SECONDS=7",
	}
	out, errs, code := program(t, ownName, environ, "proxy", "--log_as_json", "--log_target", path, "--log_target", "stderr", "--concurrency=1", "--log_caller=all")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if code != exitError || out != "" || strings.Contains(errs+string(text), "s3cr3t") {
		t.Errorf("got exit code %d, output %q, errors %q, log %q", code, out, errs, text)
	}
	if !strings.HasPrefix(errs, string(text)) {
		t.Errorf("the two targets differ: %q and %q", errs, text)
	}
	var names []any
	ends := 0
	for line := range strings.Lines(string(text)) {
		var doc map[string]any
		if err := json.Unmarshal([]byte(line), &doc); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if doc["level"] == "error" && doc["msg"] == "agent failed" {
			ends++
		} else if doc["level"] != "warn" || !strings.HasPrefix(doc["caller"].(string), "outrigger-agent/proxy.go:") {
			t.Errorf("unexpected line %v", doc)
		}
		if name, ok := doc["name"]; ok {
			names = append(names, name)
		}
	}
	if !slices.Contains(names, any("--concurrency")) || !strings.Contains(string(text), "terminationDrainDuration of ProxyConfig") {
		t.Errorf("log: got %s", text)
	}
	if ends != 1 {
		t.Errorf("%d lines contain the reason of the exit, want 1: %s", ends, text)
	}
}
