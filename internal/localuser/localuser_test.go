// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localuser

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"own", "open", "theirs"} {
		if err := os.WriteFile(path(name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(path("open"), 0o666), os.Symlink("own", path("link")), syscall.Mkfifo(path("pipe"), 0o600), os.Mkdir(path("directory"), 0o700)); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path("own"), 0o077)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil || string(text) != "own" {
		t.Errorf("got %q, error %v; want own", text, err)
	}
	refused := []string{"open", "link", "pipe", "directory"}
	if os.Geteuid() == 0 {
		if err := os.Chown(path("theirs"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused = append(refused, "theirs")
	} else {
		t.Log("skipping the file of another user, which needs root")
	}
	for _, name := range refused {
		if _, err := Open(path(name), 0o022); !errors.Is(err, ErrRefused) {
			t.Errorf("Open(%s) = %v, want ErrRefused", name, err)
		}
	}
	if _, err := Open(path("none"), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a missing file = %v, want fs.ErrNotExist", err)
	}
}

func TestPeer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports the peer")
	}
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if pid, uid, ok := Peer(conn); !ok || pid != os.Getpid() || uid != os.Geteuid() {
		t.Errorf("Peer() = process %d, user %d, %t", pid, uid, ok)
	}
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	if _, _, ok := Peer(a); ok {
		t.Error("Peer() of a pipe = true, want false")
	}
}
