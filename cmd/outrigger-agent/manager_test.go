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

// An agent that a service manager started reports when the proxy is ready, that it works, during the
// drain too, and that it stops.
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
				t.Fatalf("%s does not come, but %q: %v", line, all, err)
			}
			all += "\n" + string(buffer[:n])
		}
	}
	cp := newControlPlane(t)
	a := startAgent(t, "127.77.41.2", `,"terminationDrainDuration":"1s"`, cp, "NOTIFY_SOCKET="+socket.LocalAddr().String(), "WATCHDOG_USEC=400000")
	await("STATUS=ready; control plane: connected")
	if !strings.Contains(all, "\nREADY=1\nSTATUS=ready") {
		t.Errorf("before the proxy is ready the agent reports %q", all)
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
