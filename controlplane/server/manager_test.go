// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestManager checks that a control plane started by a service manager reports when it is ready,
// that it is alive, and that it stops.
func TestManager(t *testing.T) {
	t.Parallel()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	await := func(line string) {
		t.Helper()
		buffer := make([]byte, 4096)
		for {
			if err := socket.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
				t.Fatal(err)
			}
			n, err := socket.Read(buffer)
			if err != nil {
				t.Fatalf("timeout waiting for %s: %v", line, err)
			}
			if strings.Contains("\n"+string(buffer[:n])+"\n", "\n"+line+"\n") {
				return
			}
		}
	}
	_, stop, done := plainServer(t, func(c *Config) {
		c.Manager.Socket, c.Manager.Watchdog = socket.LocalAddr().String(), 4*time.Millisecond
	})
	await("READY=1")
	await("WATCHDOG=1")
	stop()
	await("STOPPING=1")
	if err := <-done; err != nil {
		t.Error(err)
	}
}
