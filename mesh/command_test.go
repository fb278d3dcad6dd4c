// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// If the reader of the output is gone, the mesh ends as on a signal.
func TestOutputThatNobodyReads(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	ended := false
	written := func() error { _, err := (whileRead{w, func() { ended = true }}).Write([]byte("x")); return err }
	err = written()
	// A process that another test is just starting may have the other end open for a moment.
	for deadline := time.Now().Add(2 * time.Minute); err == nil && time.Now().Before(deadline); err = written() {
		time.Sleep(time.Millisecond)
	}
	if err == nil || !ended {
		t.Errorf("error %v, ended: %t", err, ended)
	}
}

// fakeEnvoy writes a program that prints the version of an Envoy.
func fakeEnvoy(t *testing.T, dir, version string) string {
	t.Helper()
	path := filepath.Join(dir, "envoy")
	script := fmt.Sprintf("#!/bin/sh\necho 'envoy  version: abc/%s/Clean/RELEASE/BoringSSL'\n", version)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFindEnvoy(t *testing.T) {
	beside, onPath := t.TempDir(), t.TempDir()
	fromFlag, fromEnv := fakeEnvoy(t, t.TempDir(), "1.39.3"), fakeEnvoy(t, t.TempDir(), "1.36.10")
	old := fakeEnvoy(t, t.TempDir(), "1.35.9")
	unsafe := fakeEnvoy(t, t.TempDir(), "1.37.5")
	t.Setenv("PATH", onPath+":/bin:/usr/bin")
	for _, c := range []struct {
		name, flag, env string
		unsafe          bool
		before          func()
		want, problem   string
	}{
		{name: "none", problem: "make envoy"},
		{name: "path", before: func() { fakeEnvoy(t, onPath, "1.40.0") }, want: filepath.Join(onPath, "envoy")},
		{name: "beside", before: func() { fakeEnvoy(t, beside, "1.39.3") }, want: filepath.Join(beside, "envoy")},
		{name: "env", env: fromEnv, want: fromEnv},
		{name: "flag", flag: fromFlag, env: fromEnv, want: fromFlag},
		{name: "too old", env: old, problem: "1.36"},
		{name: "unsafe", env: unsafe, problem: "use 1.37.6 or newer"},
		{name: "unsafe, allowed", env: unsafe, unsafe: true, want: unsafe},
		{name: "missing", env: "/no/such/envoy", problem: "/no/such/envoy"},
	} {
		if c.before != nil {
			c.before()
		}
		got, err := findEnvoy(t.Context(), Host{EnvoyFlag: c.flag, EnvoyVariable: c.env, AllowUnsafeEnvoy: c.unsafe}, beside)
		switch {
		case c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)):
			t.Errorf("%s: error %v does not name %s", c.name, err, c.problem)
		case c.problem == "" && (err != nil || got != c.want):
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
}
