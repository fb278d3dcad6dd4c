// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFollower checks that an optional file may be missing at first, and that once it has existed,
// only a valid text replaces the last one.
func TestFollower(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "roots")
	var got []byte
	bad := errors.New("bad")
	r := NewFollower(FollowerConfig{Path: file, MaxBytes: 10, Optional: true, Take: func(text []byte) error {
		if bytes.Contains(text, []byte("bad")) {
			return bad
		}
		got = text
		return nil
	}})
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Look(); err != nil || got != nil {
		t.Errorf("a missing file: got %q, error %v", got, err)
	}
	for _, step := range []struct {
		text, want string
		err        error
	}{{"one", "one", nil}, {"bad", "one", bad}, {"two", "two", nil}, {"bad", "two", bad}} {
		write(step.text)
		if err := r.Look(); !errors.Is(err, step.err) || string(got) != step.want {
			t.Errorf("%s: got %q, error %v", step.text, got, err)
		}
	}
	write("\n") // as while the file is being written
	if err := r.Look(); err == nil || !strings.Contains(err.Error(), "is empty") || string(got) != "two" {
		t.Errorf("an empty file: got %q, error %v", got, err)
	}
	write("more than ten bytes")
	if err := r.Look(); err == nil || !strings.Contains(err.Error(), "more than 10 bytes") || string(got) != "two" {
		t.Errorf("a file that is too large: got %q, error %v", got, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := r.Look(); !errors.Is(err, os.ErrNotExist) || string(got) != "two" {
		t.Errorf("a removed file: got %q, error %v", got, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	write("linked")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	linked := NewFollower(FollowerConfig{Path: link, MaxBytes: 10, Take: func(text []byte) error { got = text; return nil }})
	if err := linked.Look(); err != nil || string(got) != "linked" {
		t.Errorf("through a link: got %q, error %v", got, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	needed := NewFollower(FollowerConfig{Path: file, MaxBytes: 10})
	if err := needed.Look(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file that is not optional: got error %v", err)
	}
}
