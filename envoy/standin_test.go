// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestReplaceSocket checks that the name of a socket exists at all times while the socket is
// replaced. Envoy tolerates a socket without a listener, but not a missing socket.
func TestReplaceSocket(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "parent")
	first, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close() // its process has exited
	stop, missing := make(chan struct{}), make(chan bool, 1)
	go func() {
		for {
			select {
			case <-stop:
				missing <- false
				return
			default:
			}
			if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
				missing <- true
				return
			}
		}
	}()
	for range 500 {
		conn, err := replaceSocket(name)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // a socket without data
	}
	close(stop)
	if <-missing {
		t.Error("the socket was missing during a replacement")
	}
}
