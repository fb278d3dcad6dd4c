// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/e2e/envoytest"
)

// TestEnvoyReplacesCommands checks that the real Envoy replaces all commands of its version in
// response headers, and rejects those of newer versions.
func TestEnvoyReplacesCommands(t *testing.T) {
	t.Parallel()
	binary := envoytest.Binary(t)
	minor := minorOf(t, binary)
	var values []string
	for name, c := range field.Sorted(table()) {
		if c.not == headers {
			continue
		}
		argument := arguments[name]
		if argument == "" {
			argument = "0"
		}
		for _, form := range []struct {
			text string
			ok   bool
		}{{"%" + name + "%", c.without}, {"%" + name + "(" + argument + ")%", c.argument != nil}, {"%" + name + "(" + argument + "):5%", c.argument != nil && c.shortened}} {
			if !form.ok {
				continue
			}
			since, _, err := Header(form.text)
			if err != nil {
				t.Errorf("Header(%s) = %v, want nil", form.text, err)
			}
			if since <= minor {
				values = append(values, form.text)
			} else if out, err := validate(t, binary, headerListener(form.text)); err == nil {
				t.Errorf("Envoy 1.%d accepts %s, which requires 1.%d:\n%s", minor, form.text, since, out)
			}
		}
	}
	if len(values) < 120 {
		t.Fatalf("%d commands, want at least 120", len(values))
	}
	got := answer(t, binary, headerListener(values...))
	replaced := 0
	for i, v := range values {
		sent := got.Get("x-" + strconv.Itoa(i))
		if strings.Contains(sent, "%"+regexp.MustCompile(`[A-Z0-9_]+`).FindString(v)) {
			t.Errorf("%s was not replaced: %q", v, sent)
		}
		if sent != "" {
			replaced++
		}
	}
	if replaced < 30 {
		t.Errorf("only %d of %d headers have a value, want 30: %v", replaced, len(values), got)
	}
}

// headerListener returns a listener whose responses have the headers x-0, x-1 and so on.
func headerListener(values ...string) map[string]any {
	list := []any{}
	for i, v := range values {
		list = append(list, map[string]any{"header": map[string]any{"key": "x-" + strconv.Itoa(i), "value": v}})
	}
	return map[string]any{"filter_chains": []any{map[string]any{"filters": []any{map[string]any{"name": "http", "typed_config": map[string]any{
		"@type":        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix":  "a",
		"http_filters": []any{map[string]any{"name": "router", "typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
		"route_config": map[string]any{"virtual_hosts": []any{map[string]any{
			"name": "a", "domains": []string{"*"}, "response_headers_to_add": list,
			"routes": []any{map[string]any{"match": map[string]any{"prefix": "/"}, "direct_response": map[string]any{"status": 200}}},
		}}},
	}}}}}}
}

// answer runs Envoy with a listener and returns the headers of a response.
func answer(t *testing.T, binary string, listener map[string]any) http.Header {
	t.Helper()
	dir := t.TempDir()
	loopback := map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	listener["name"], listener["address"] = "l", loopback
	config, err := json.Marshal(map[string]any{
		"admin": map[string]any{"address": loopback}, "static_resources": map[string]any{"listeners": []any{listener}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path, admin := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	cmd := exec.CommandContext(t.Context(), binary, "-c", path, "--concurrency", "1", "--use-dynamic-base-id", "--admin-address-path", admin, "-l", "warning")
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		select {
		case <-ended:
			t.Fatalf("Envoy exited: %s", output.String())
		case <-time.After(20 * time.Millisecond):
		}
		if h, err := ask(admin); err == nil {
			return h
		}
	}
	t.Fatal("timeout waiting for a response of Envoy")
	return nil
}

// ask sends a request to the listener of the Envoy whose admin address is in a file.
func ask(admin string) (http.Header, error) {
	address, err := os.ReadFile(admin)
	if err != nil {
		return nil, err
	}
	listeners, err := http.Get("http://" + string(address) + "/listeners?format=json")
	if err != nil {
		return nil, err
	}
	defer func() { _ = listeners.Body.Close() }()
	var status struct {
		List []struct {
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.NewDecoder(listeners.Body).Decode(&status); err != nil {
		return nil, err
	}
	if len(status.List) != 1 {
		return nil, fmt.Errorf("%d listeners", len(status.List))
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/x?y=z", status.List[0].Address.Socket.Port))
	if err != nil {
		return nil, err
	}
	return resp.Header, resp.Body.Close()
}

// minorOf returns the minor version of an Envoy.
func minorOf(t *testing.T, binary string) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`/1\.([0-9]+)\.`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("the output has no version: %q", out)
	}
	minor, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return minor
}
