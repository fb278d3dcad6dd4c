// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLinksOutOfDirectory checks that no Secret outside of the directory is read unless links may
// lead there, and that this is logged once. Secrets of removed files must be removed.
func TestLinksOutOfDirectory(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	file := func(path, name string) {
		text := "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: a}\nstringData: {x: y}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file(filepath.Join(dir, "in.yaml"), "in")
	file(filepath.Join(outside, "out.yaml"), "out")
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, links := range [][]string{nil, {outside}} {
		var log bytes.Buffer
		s, err := NewFileSource(FileConfig{Dir: dir, Links: links, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		file(filepath.Join(dir, "in.yaml"), "in")
		s.scan(t.Context(), nil)
		if n := len(s.seen); n != 1+len(links) {
			t.Errorf("with links to %q: %d files were read", links, n)
		}
		if err := os.Remove(filepath.Join(dir, "in.yaml")); err != nil {
			t.Fatal(err)
		}
		s.scan(t.Context(), nil)
		if n := len(s.seen); n != len(links) {
			t.Errorf("with links to %q: %d files are remembered after the removal", links, n)
		}
		if n := strings.Count(log.String(), "outside of"); n != 1-len(links) {
			t.Errorf("with links to %q: logged %d times:\n%s", links, n, log.String())
		}
	}
}
