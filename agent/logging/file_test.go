// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package logging

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLogTargets checks that several targets can be used at once, and that an existing file keeps
// its lines.
func TestLogTargets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	if err := os.WriteFile(one, []byte("an older line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := parsedLogFlags(t, "--log_target", one, "--log_target", two, "--log_rotate", filepath.Join(dir, "new", "three")).Logger()
	if err != nil {
		t.Fatal(err)
	}
	log.Info("a line")
	for path, older := range map[string]string{one: "an older line\n", two: "", filepath.Join(dir, "new", "three"): ""} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(text), older)
		if !ok || !slices.Equal(textLines(t, rest), []string{"info\ta line"}) {
			t.Errorf("%s holds %q", path, text)
		}
	}
	for _, args := range [][]string{
		{"--log_target", filepath.Join(dir, "none", "x")},
		{"--log_target="},
		{"--log_rotate", filepath.Join(one, "x")},
		{"--log_rotate", dir},
		{"--log_rotate=x", "--log_rotate_max_age=-1"},
		{"--log_rotate=x", "--log_rotate_max_size=-1"},
		{"--log_rotate=x", "--log_rotate_max_backups=-1"},
		{"--log_stacktrace_level=loud"},
		{"--log_output_level=loud"},
	} {
		flag, _, _ := strings.Cut(args[len(args)-1], "=")
		if !strings.HasPrefix(flag, "--") {
			flag = args[0]
		}
		if _, err := parsedLogFlags(t, args...).Logger(); err == nil || !strings.HasPrefix(err.Error(), flag) {
			t.Errorf("%q: error %v, want one that begins with %s", args, err, flag)
		}
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestLogBrokenTarget checks that a target that fails does not affect the others.
func TestLogBrokenTarget(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	n, err := io.WriteString(writers{brokenWriter{}, &out, brokenWriter{}}, "x")
	if out.String() != "x" || n != 1 || err == nil {
		t.Errorf("wrote %q, %d, %v", out.String(), n, err)
	}
}

func TestMegabytes(t *testing.T) {
	t.Parallel()
	for in, want := range map[int]int{0: 0, 1: 1, 100: 100, 1 << 16: 1 << 16, 1<<16 + 1: 1, 1 << 20: 1, 1<<20 + 1: 2, 104857600: 100} {
		if got := megabytes(in); got != want {
			t.Errorf("%d: %d, want %d", in, got, want)
		}
	}
}

// TestLogRotation checks that a file is rotated at its maximum size, that old files are removed,
// and that no line is lost.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := parsedLogFlags(t, "--log_target", filepath.Join(dir, "whole"), "--log_as_json",
		"--log_rotate", filepath.Join(dir, "agent.log"), "--log_rotate_max_size=1048576", "--log_rotate_max_backups=2").Logger()
	if err != nil {
		t.Fatal(err)
	}
	filler := strings.Repeat("x", maxLogValue)
	write := func() { // 3 MB of different lines, because equal lines are rate limited
		for i := range 250 {
			log.Info(fmt.Sprint("long line ", i), "count", i, "reason", filler, "err", filler, "value", filler)
		}
	}
	write()
	rotated := func() (files []string) {
		files, err := filepath.Glob(filepath.Join(dir, "agent*.log"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	next := 0
	for _, path := range rotated() { // agent-<time>.log sorts before agent.log
		info, err := os.Stat(path)
		if err != nil || info.Size() > 1<<20 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range jsonLines(t, string(text)) {
			if doc["count"] != float64(next) {
				t.Fatalf("%s: line %v follows line %d", path, doc["count"], next-1)
			}
			next++
		}
	}
	if next != 250 || len(rotated()) != 3 {
		t.Errorf("%d lines in %q", next, rotated())
	}
	write()
	for deadline := time.Now().Add(2 * time.Minute); len(rotated()) != 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("old files are not removed: %q", rotated())
		}
	}
	whole, err := os.ReadFile(filepath.Join(dir, "whole"))
	if err != nil || bytes.Count(whole, []byte("\n")) != 500 {
		t.Errorf("the other target: %d lines, %v", bytes.Count(whole, []byte("\n")), err)
	}
}
