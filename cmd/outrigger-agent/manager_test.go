// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProxyManager checks what an agent reports to a service manager: when the proxy is ready, that
// it is alive, also during the drain, and that it stops.
func TestProxyManager(t *testing.T) {
	t.Parallel()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	var all string
	await := func(line string) {
		t.Helper()
		buffer := make([]byte, 4096)
		for all = ""; !strings.Contains(all, "\n"+line); {
			if err := socket.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(buffer)
			if err != nil {
				t.Fatalf("timeout waiting for %s; received %q, error %v", line, all, err)
			}
			all += "\n" + string(buffer[:n])
		}
	}
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.41.2", `,"terminationDrainDuration":"1s"`, cp, "NOTIFY_SOCKET="+socket.LocalAddr().String(), "WATCHDOG_USEC=400000")
	await("STATUS=ready; control plane: connected")
	if !strings.Contains(all, "\nREADY=1\nSTATUS=ready") {
		t.Errorf("messages before READY=1: got %q", all)
	}
	a.waitReady()
	await("WATCHDOG=1")
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await("STOPPING=1")
	await("WATCHDOG=1")
	a.waitEnd(exitOK)
}
