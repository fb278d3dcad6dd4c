// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProxyBusyEnvoyStaysReady checks that an Envoy that is too busy to respond stays ready, and
// that one that has exited is unready immediately.
func TestProxyBusyEnvoyStaysReady(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "127.77.62.3", `,"terminationDrainDuration":"0s"`, newControlPlane(t), "--envoy-restart=1/1h")
	a.waitReady()
	if code, body := a.get(15020, "/healthz/ready"); code != http.StatusOK {
		t.Fatalf("readiness: got %d %s, want 200", code, body)
	}
	pid := a.envoyPID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// The agent relies on the last response for 10 s. After that, a busy machine may cause any
	// result.
	stopped := time.Now()
	ask := func(until time.Duration) {
		for begun := time.Now(); time.Since(begun) < until; {
			code, body := a.get(15020, "/healthz/ready")
			if after := time.Since(stopped); code != http.StatusOK && after < 9*time.Second {
				t.Errorf("%s after Envoy was paused: got %d %s, want 200", after, code, body)
			}
		}
	}
	ask(2500 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	ask(500 * time.Millisecond)
	// Kill Envoy while it is paused, so that there is no response to wait for.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	killed := a.killEnvoy(pid)
	code, body := a.notReady(killed)
	if off := time.Since(killed); code != http.StatusServiceUnavailable || !strings.Contains(body, "killed by signal 9") {
		t.Errorf("%s after the kill: got %d %s, want 503 and the cause", off, code, body)
	}
}
