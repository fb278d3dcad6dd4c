// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestParentOfAnotherUser: another user leads the directory nowhere.
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
