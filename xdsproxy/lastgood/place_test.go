// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// TestParentOfAnotherUser checks that another user cannot redirect the directory.
func TestParentOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	dir, behind := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "last-good")
	if err := os.Symlink(behind, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := ownDirectory(filepath.Join(link, "data")); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("a link of another user: %v", err)
	}
	if left, err := os.ReadDir(behind); err != nil || len(left) != 0 {
		t.Errorf("behind the link are %v, %v", left, err)
	}
	if err := os.Lchown(link, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := ownDirectory(filepath.Join(link, "data")); err != nil {
		t.Errorf("a link of this user: %v", err)
	}
}

// TestUnlock checks that the lock is released although another process has the file open, like a
// child before exec.
func TestUnlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(fd) }() // nothing was written
	if other, err := lock(dir); err == nil || reasonOf(err) != reasonBusy {
		t.Errorf("locked twice: %v, %v", other, err)
	}
	if err := durable.Unlock(f); err != nil {
		t.Fatal(err)
	}
	again, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.Unlock(again); err != nil {
		t.Fatal(err)
	}
}
