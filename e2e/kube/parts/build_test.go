// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package parts

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestGet(t *testing.T) {
	t.Parallel()
	got, err := Get(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	if again, err := Get(t.Context(), &progress); err != nil || again != got || progress.Len() != 0 {
		t.Errorf("again: %+v, %v, output %q, want the same without output", again, err, progress.String())
	}
	for path, version := range map[string]string{got.APIServer: got.APIServerVersion, got.Etcd: got.EtcdVersion} {
		out, err := exec.CommandContext(t.Context(), path, "--version").Output()
		if err != nil || !strings.Contains(string(out), strings.TrimPrefix(version, "v")+"\n") {
			t.Errorf("%s --version: %s, %v, want %s", path, out, err, version)
		}
	}
}

// small creates a module that builds quickly, in place of a part.
func small(t *testing.T, program string) (builder, part) {
	t.Helper()
	b := builder{source: t.TempDir(), cache: t.TempDir(), progress: io.Discard}
	dir := filepath.Join(b.source, "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  "module small\n\ngo 1.26.0\n\n// not a line of this module's:\n// require small.test/x v1.2.3\nrequire small.test/x v1.2.3 // indirect\n",
		"go.sum":  "",
		"main.go": program,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b, part{name: "small", folder: "small", module: "small.test/x", target: "main.go", ldflags: func(v string) string { return " -X main.version=" + v }}
}

const printsVersion = "package main\n\nvar version string\n\nfunc main() { print(version) }\n"

// TestOneBuild calls Get several times concurrently.
func TestOneBuild(t *testing.T) {
	t.Parallel()
	b, p := small(t, printsVersion)
	var mu sync.Mutex
	var said strings.Builder
	b.progress = writer(func(text []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return said.Write(text)
	})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			path, version, err := b.get(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := exec.CommandContext(t.Context(), path).CombinedOutput(); err != nil || string(out) != "v1.2.3" || version != "v1.2.3" {
				t.Errorf("version %s, the program says %s, %v, want v1.2.3", version, out, err)
			}
		})
	}
	group.Wait()
	if n := strings.Count(said.String(), "kube: building small v1.2.3"); n != 1 {
		t.Errorf("it was built %d times, want 1:\n%s", n, said.String())
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestChangeBuildsAnew(t *testing.T) {
	t.Parallel()
	b, p := small(t, printsVersion)
	first, _, err := b.get(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.source, "small", "go.sum"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * forgetAfter)
	if err := os.Chtimes(filepath.Dir(first), old, old); err != nil {
		t.Fatal(err)
	}
	second, _, err := b.get(t.Context(), p)
	if err != nil || second == first {
		t.Errorf("after a change: %s, %v, want another than %s", second, err, first)
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an old build: %v, want that it is gone", err)
	}
}

func TestFailedBuild(t *testing.T) {
	t.Parallel()
	b, p := small(t, "package main\n\nfunc main() { nothing() }\n")
	if _, _, err := b.get(t.Context(), p); err == nil || !strings.Contains(err.Error(), "undefined: nothing") {
		t.Errorf("got %v, want the error of the compiler", err)
	}
	if left, err := filepath.Glob(filepath.Join(b.cache, "small*")); err != nil || len(left) != 0 {
		t.Errorf("a failed build leaves %q, %v", left, err)
	}
}

func TestWaitIsCancelled(t *testing.T) {
	t.Parallel()
	b, p := small(t, printsVersion)
	unlock, err := b.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	b.progress = writer(func(text []byte) (int, error) {
		cancel()
		return len(text), nil
	})
	if _, _, err := b.get(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
}
