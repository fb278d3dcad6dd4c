// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// badFile is a file of access logs that validation accepts and Envoy does not: it
// rejects all listeners.
const badFile = "/NO_SUCH_DIRECTORY/log"

// TestEnvoyRejectsFirst starts the shop with listeners that its Envoys reject. Neither the
// readiness nor the status reports a proxy as healthy. The correction makes all of them ready.
func TestEnvoyRejectsFirst(t *testing.T) {
	s := newShop(t)
	s.edit("mesh.yaml", "config: config\n", "mesh:\n  accessLogFile: "+badFile+"\n  inboundTrafficPolicy: {mode: LOCALHOST}\nconfig: config\n")
	s.start()
	text, err := os.ReadFile(filepath.Join(s.dir, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), "  inboundTrafficPolicy")
	s.waitFor(fmt.Sprintf("mesh.yaml:%d: mesh: inboundTrafficPolicy has no effect in this version", 1+strings.Count(before, "\n")), 2*time.Minute)
	ready := func(address string) (int, string) {
		code, body, _, err := get(t.Context(), http.DefaultClient, "http://"+address+":15020/healthz/ready", nil)
		if err != nil {
			return 0, err.Error()
		}
		return code, body
	}
	const limit = 2 * time.Minute
	for _, address := range []string{frontend, catalogV1, orders} {
		eventually(t, limit, func() string {
			time.Sleep(20 * time.Millisecond)
			code, body := ready(address)
			if code == http.StatusOK {
				t.Fatalf("%s is ready: %s", address, body)
			}
			if strings.HasPrefix(body, "envoy has rejected ") && strings.Contains(body, "NO_SUCH_DIRECTORY") {
				return ""
			}
			return fmt.Sprintf("the readiness of %s is %d: %s", address, code, body)
		})
	}
	eventually(t, limit, func() string {
		out, err := s.tool("status")
		if err != nil && strings.Contains(out, "REJECTED") && strings.Contains(out, "rejected something") && strings.Contains(out, "NO_SUCH_DIRECTORY") && !strings.Contains(out, "all have what they were sent") {
			return ""
		}
		return fmt.Sprintf("outrigger status, %v:\n%s", err, out)
	})
	if code, body := ready(frontend); code != http.StatusServiceUnavailable {
		t.Errorf("after a while the readiness is %d: %s", code, body)
	}

	// The control plane follows this file.
	mesh := filepath.Join(s.stateDir(), "control", "mesh.yaml")
	text, err = os.ReadFile(mesh)
	if err != nil || !strings.Contains(string(text), badFile) {
		t.Fatalf("the mesh config of the control plane is %q, %v", text, err)
	}
	if err := os.WriteFile(mesh, []byte(strings.Replace(string(text), badFile, "/dev/null", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.waitFor("Ctrl-C ends it", limit)
	table := ""
	eventually(t, limit, func() string {
		out, err := s.tool("status", "-o", "wide")
		if table = out; err == nil && strings.Contains(out, "4 proxies: all have what they were sent.") {
			return ""
		}
		return fmt.Sprintf("outrigger status after the correction, %v:\n%s", err, out)
	})
	// No proxy of this machine belongs to a cluster.
	rows := 0
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 2 && strings.Contains(line, "SYNCED") {
			if rows++; fields[1] != "-" {
				t.Errorf("the cluster is %q, want none: %s", fields[1], line)
			}
		}
	}
	if rows != 4 {
		t.Errorf("%d rows, want 4:\n%s", rows, table)
	}
}
