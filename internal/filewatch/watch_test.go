// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filewatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestPoints checks that every link is watched, and the first missing component of a path.
func TestPoints(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.MkdirAll(filepath.Join(dir, "a", "..1"), 0o700), os.WriteFile(filepath.Join(dir, "a", "..1", "f"), nil, 0o600),
		os.Symlink("..1", filepath.Join(dir, "a", "..data")), os.Symlink("..data/f", filepath.Join(dir, "a", "f")),
		os.Symlink("../"+filepath.Base(dir)+"/a", filepath.Join(dir, "b")), os.Symlink("loop", filepath.Join(dir, "loop")))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"a/f": "[a/f a/..data a/..1/f]", "b/f": "[b a/f a/..data a/..1/f]", "a/none": "[a/none]", "none/at/all": "[none]",
	} {
		var got []string
		for _, p := range Points(filepath.Join(dir, path)) {
			relative, err := filepath.Rel(dir, p)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, relative)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("Points(%s) = %v, want %s", path, got, want)
		}
	}
	if got := Points(filepath.Join(dir, "loop")); len(got) > maxLinks+1 {
		t.Errorf("%d points for a loop of links, want at most %d", len(got), maxLinks+1)
	}
}
