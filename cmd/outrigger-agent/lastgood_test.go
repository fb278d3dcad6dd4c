// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProxyColdStart starts an agent and Envoy while the control plane is down. They must serve
// their last configuration and report that. They must need no authority if the identity may be
// stored.
func TestProxyColdStart(t *testing.T) {
	t.Parallel()
	const address = "127.77.44.13"
	cp := newControlPlane(t)
	dir := t.TempDir()
	writeIn(t, dir, "override.yaml", []byte(secretUser))
	writeIn(t, dir, "var/run/secrets/istio/root-cert.pem", cp.rootPEM())
	writeIn(t, dir, "var/run/secrets/tokens/istio-token", []byte("the-token\n"))
	extra := []string{"OUTRIGGER_LAST_GOOD_IDENTITY=true", "ISTIO_BOOTSTRAP_OVERRIDE=" + dir + "/override.yaml", "ISTIO_META_DNS_CAPTURE=true"}
	stop := func(a *runningAgent) {
		t.Helper()
		if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.waitEnd(exitOK)
	}
	first := startAgentIn(t, dir, address, `,"terminationDrainDuration":"0s"`, cp, extra...)
	first.waitReady()
	state := filepath.Join(dir, "var/lib/istio/data/last-good/data")
	eventually(t, "the configuration is stored", func() bool {
		_, body := first.get(15020, "/stats/prometheus")
		return strings.Contains(body, "outrigger_agent_last_good_age_seconds ")
	})
	stop(first)
	cp.server.Stop()
	begin := time.Now()
	second := startAgentIn(t, dir, address, `,"terminationDrainDuration":"0s"`, cp, extra...)
	second.waitReady()
	t.Logf("ready after %s without a control plane", time.Since(begin))
	if code, body := second.get(15020, "/healthz/ready"); code != http.StatusOK || !strings.Contains(body, "serving last good from 20") {
		t.Errorf("readiness: got %d %s", code, body)
	}
	eventually(t, "Envoy has the stored certificate", second.hasSecret)
	stop(second)
	err := filepath.WalkDir(filepath.Dir(state), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == filepath.Dir(state) {
			return nil
		}
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		if info.Mode().IsRegular() {
			doc, err := os.ReadFile(path)
			if err != nil || strings.Contains(string(doc), "PRIVATE KEY") || strings.Contains(string(doc), "CERTIFICATE") {
				t.Errorf("%s is not encrypted, or error %v", path, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
