// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// counted serves a module and counts the requests.
func counted(t *testing.T, module []byte) (url string, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		_, _ = w.Write(module)
	}))
	return s.URL, calls
}

func TestModesOfFiles(t *testing.T) {
	t.Parallel()
	url, _ := counted(t, testModule("x", "y"))
	c := newCache(t, Config{Dir: filepath.Join(t.TempDir(), "a", "b")})
	path, err := rewriteOne(t, c, pluginSpec{name: "p", url: url})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{path: 0o644, filepath.Dir(path): 0o755, c.cfg.Dir: 0o755, filepath.Join(c.cfg.Dir, indexName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, want mode %o", path, info, want)
		}
	}
}

// TestRestart opens a second cache in the directory of the first one.
func TestRestart(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	damage := func(b []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	changed := bytes.Clone(module)
	changed[len(changed)-1]++
	index := func(b string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			damage([]byte(b))(t, filepath.Join(filepath.Dir(filepath.Dir(path)), indexName))
		}
	}
	for name, tc := range map[string]struct {
		between func(t *testing.T, path string)
		calls   int32
	}{
		"nothing happened":  {func(*testing.T, string) {}, 1},
		"module shortened":  {damage(module[:20]), 2},
		"module changed":    {damage(changed), 2},
		"index no JSON":     {index("{"), 2},
		"index of tomorrow": {index(`{"version":99}`), 2},
		"index lies": {index(`{"version":1,"modules":[null,{"module":"../../..","checksum":"etc","sha256":"","size":1}],
			"sources":{"x":{"checksum":"../x"}}}`), 2},
		"index a pipe": {func(t *testing.T, path string) {
			t.Helper()
			index := filepath.Join(filepath.Dir(filepath.Dir(path)), indexName)
			if err := errors.Join(os.Remove(index), syscall.Mkfifo(index, 0o600)); err != nil {
				t.Fatal(err)
			}
		}, 2},
		"index for others to write": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Chmod(filepath.Join(filepath.Dir(filepath.Dir(path)), indexName), 0o622); err != nil {
				t.Fatal(err)
			}
		}, 2},
		"module for others to write": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}, 2},
		"module gone": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			url, calls := counted(t, module)
			spec := pluginSpec{name: "p", url: url, env: map[string]string{hintVersion: "1"}}
			path, err := rewriteOne(t, newCache(t, Config{Dir: dir}), spec)
			if err != nil {
				t.Fatal(err)
			}
			part := filepath.Join(dir, partPrefix+"left")
			foreign := filepath.Join(dir, "foreign")
			damage(module)(t, part)
			damage(module)(t, foreign)
			tc.between(t, path)
			c := newCache(t, Config{Dir: dir})
			again, err := rewriteOne(t, c, spec)
			if err != nil || again != path || !bytes.Equal(readFile(t, again), module) {
				t.Errorf("path %s, error %v", again, err)
			}
			if calls.Load() != tc.calls || c.store.bytes != int64(len(module)) {
				t.Errorf("%d requests, want %d; %d bytes", calls.Load(), tc.calls, c.store.bytes)
			}
			if _, err := os.Stat(part); err == nil {
				t.Error("a half written file is left")
			}
			if _, err := os.Stat(foreign); err != nil {
				t.Error("a file of others is gone")
			}
		})
	}
}

func TestPurge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	oldURL, _ := counted(t, testModule("x", "old"))
	newURL, calls := counted(t, testModule("x", "new"))
	c := newCache(t, Config{Dir: dir})
	old, err := rewriteOne(t, c, pluginSpec{name: "p", url: oldURL})
	if err != nil {
		t.Fatal(err)
	}
	current, err := rewriteOne(t, c, pluginSpec{name: "p", url: newURL})
	if err != nil {
		t.Fatal(err)
	}
	c.store.purge(time.Now().Add(-time.Hour))
	readFile(t, old) // not old enough
	c.store.purge(time.Now().Add(time.Hour))
	if _, err := os.Stat(filepath.Dir(old)); err == nil {
		t.Error("an unused module was not removed")
	}
	readFile(t, current) // in use by Envoy
	c = newCache(t, Config{Dir: dir})
	if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: newURL}); err != nil || calls.Load() != 1 {
		t.Errorf("error %v, %d requests", err, calls.Load())
	}
}

// TestPurgeByRun checks that Run purges, with a fake clock.
func TestPurgeByRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	url, _ := counted(t, testModule("x", "y"))
	path, err := rewriteOne(t, newCache(t, Config{Dir: dir}), pluginSpec{name: "p", url: url})
	if err != nil {
		t.Fatal(err)
	}
	newCache(t, Config{Dir: dir, Expiry: time.Millisecond, PurgeInterval: 10 * time.Millisecond})
	poll(t, func() string {
		if _, err := os.Stat(path); err == nil {
			return "the module is left"
		}
		return ""
	})
}

func TestSizeLimit(t *testing.T) {
	t.Parallel()
	big := func(s string) []byte { return append(testModule("x", s), make([]byte, 1000)...) }
	urls, paths := make([]string, 5), make([]string, 5)
	for i := range urls {
		urls[i], _ = counted(t, big(string(rune('a'+i))))
	}
	size := int64(len(big("a")))
	c := newCache(t, Config{MaxCacheBytes: 3*size + size/2})
	// The third evicts the first, which makes room for the fourth.
	for i, name := range []string{"p", "q", "p", "r"} {
		var err error
		if paths[i], err = rewriteOne(t, c, pluginSpec{name: name, url: urls[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(paths[0]); err == nil {
		t.Error("the oldest module was not removed")
	}
	if c.store.bytes != 3*size {
		t.Errorf("%d bytes, want %d", c.store.bytes, 3*size)
	}
	if _, err := rewriteOne(t, c, pluginSpec{name: "s", url: urls[4]}); err == nil || !strings.Contains(err.Error(), "the cache is full") {
		t.Errorf("a fourth module was accepted although the cache has room for three: %v", err)
	}
	for _, path := range paths[1:4] {
		readFile(t, path)
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{Dir: "relative"}, {FileDir: "relative"}, {AllowedHosts: []string{"1/2/3"}}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	url, _ := counted(t, testModule("x", "y"))
	if _, err := rewriteOne(t, newCache(t, Config{Dir: file}), pluginSpec{name: "p", url: url}); err == nil {
		t.Error("a file is a directory")
	}
}
