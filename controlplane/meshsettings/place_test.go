// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestWarningsNamePlaces checks that each warning about a field contains its file and line.
func TestWarningsNamePlaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mesh, networks := filepath.Join(dir, "mesh"), filepath.Join(dir, "networks")
	const text = `# of the shop
accessLogFile: /dev/stdout
defaultConfig:
  holdApplication: true
  proxyMetadata: {}
inbound_traffic_policy: {mode: LOCALHOST}
extensionProviders:
- name: a.b
  zipkin: {service: x, port: 9411}
- name: c
  zipkin: {service: x, port: 9411,
    sampled: true}
`
	for path, text := range map[string]string{mesh: text, networks: "networks:\n  net.one:\n    endpoint: []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	m, err := New(t.Context(), Config{File: mesh, NetworksFile: networks, Logger: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{
		"defaultConfig.holdApplication":       mesh + ":4",
		"inboundTrafficPolicy":                mesh + ":6",
		"extensionProviders[].zipkin.sampled": mesh + ":12",
		"networks.net.one.endpoint":           networks + ":3",
	} {
		if want := "source=" + source + " name=" + name + "\n"; !strings.Contains(log.String(), want) {
			t.Errorf("no warning ends with %q:\n%s", want, &log)
		}
	}
	if got := m.Current().Place("trustDomain"); got != mesh {
		t.Errorf("Place() of a field that is not set = %s, want the file", got)
	}
}
