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
		t.Errorf("read %q, %v", text, err)
	}
	refused := []string{"open", "link", "pipe", "directory"}
	if os.Geteuid() == 0 {
		if err := os.Chown(path("theirs"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused = append(refused, "theirs")
	} else {
		t.Log("the file of another user is left out: it needs root")
	}
	for _, name := range refused {
		if _, err := Open(path(name), 0o022); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	if _, err := Open(path("none"), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestPeer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
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
		t.Errorf("the peer is process %d of user %d, known %t", pid, uid, ok)
	}
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	if _, _, ok := Peer(a); ok {
		t.Error("a pipe has a peer")
	}
}
