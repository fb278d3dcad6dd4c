// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

func TestStateIsPrivateAndRemoved(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	s, err := openState("", temp)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm() != 0o700 || !strings.HasPrefix(filepath.Base(s.dir), statePrefix) {
		t.Errorf("state directory %s: %v %v", s.dir, info.Mode(), err)
	}
	if err := writeFile(s.path("a", "b"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path("a", "b")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v %v", info, err)
	}
	if left, err := os.ReadDir(s.path("a")); err != nil || len(left) != 1 {
		t.Errorf("left beside the file: %v %v", left, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// The programs run in their own directories, where a relative path would be resolved differently.
func TestStatePathIsAbsolute(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	temp, err := filepath.Rel(here, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := openState("", temp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() }) // the test removes the directory
	if !filepath.IsAbs(s.dir) {
		t.Errorf("state directory %s is not absolute", s.dir)
	}
}

func TestStaleStateIsRemoved(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	living, err := openState("", temp)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := openState("", temp)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.Unlock(stale.lock); err != nil { // as when its process is killed
		t.Fatal(err)
	}
	foreign := filepath.Join(temp, "other-dir")
	if err := os.Mkdir(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := openState("", temp)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale.dir); !os.IsNotExist(err) {
		t.Errorf("the stale directory is still there: %v", err)
	}
	for _, dir := range []string{living.dir, foreign, s.dir} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []*state{living, s} {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStateDirIsKeptAndExclusive(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s, err := openState(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir, ""); err == nil || !strings.Contains(err.Error(), "used by another outrigger up") {
		t.Errorf("second use: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	again, err := openState(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.close(); err != nil {
		t.Fatal(err)
	}
}

// TestStateDirOfOthers refuses a directory in which another user can replace files.
func TestStateDirOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o777, 0o702, 0o770} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := openState(dir, ""); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has mode %#o, so that other users can replace its files", mode)) {
			t.Errorf("a directory of mode %o: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to have a directory of another user")
	}
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir, ""); err == nil || !strings.Contains(err.Error(), "belongs to user 12345, and this program runs as user 0") {
		t.Errorf("a directory of another user: %v", err)
	}
}
