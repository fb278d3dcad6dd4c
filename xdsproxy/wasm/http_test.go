// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// tarred returns an archive with files, preceded by a directory.
func tarred(t testing.TB, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHTTPWrapped(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	archive := tarred(t, "any.name", string(module), "other", "x")
	damaged := gzipped(t, module)
	damaged[len(damaged)-5]++ // in its checksum
	tooMany := module
	for range maxWraps {
		tooMany = gzipped(t, tooMany)
	}
	cases := map[string]struct {
		body []byte
		err  string
	}{
		"plain":          {module, ""},
		"gzip":           {gzipped(t, module), ""},
		"tar":            {archive, ""},
		"tar.gz":         {gzipped(t, archive), ""},
		"gzip twice":     {gzipped(t, gzipped(t, module)), ""},
		"too many":       {tooMany, "too many archives"},
		"empty":          {nil, "not a WebAssembly module"},
		"short":          {module[:7], "not a WebAssembly module"},
		"page":           {[]byte("<html>not found</html>"), "not a WebAssembly module"},
		"empty tar":      {tarred(t), "no such file"},
		"truncated gzip": {gzipped(t, module)[:60], "unexpected EOF"},
		"truncated tar":  {archive[:1100], "unexpected EOF"},
		"damaged gzip":   {damaged, "invalid checksum"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{})
			path, err := rewriteOne(t, c, pluginSpec{name: "p", url: serveBytes(t, tc.body).URL, sha256: sum(module)})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v", err)
				}
				wantEmpty(t, c)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(readFile(t, path), module) {
				t.Error("the file is not the module")
			}
		})
	}
}

// wantEmpty checks that a failed download leaves no files.
func wantEmpty(t *testing.T, c *Cache) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.cfg.Dir, "*", "*.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(c.cfg.Dir, partPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files)+len(parts) > 0 || c.store.bytes != 0 {
		t.Errorf("left over: %v %v, %d bytes", files, parts, c.store.bytes)
	}
}

func TestHTTPAttempts(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(module)))
		_, _ = w.Write(module[:len(module)/2])
		panic(http.ErrAbortHandler)
	}
	reset := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(module) }
	cases := map[string]struct {
		answers []http.HandlerFunc // the last one is repeated
		calls   int32
		err     string
	}{
		"at once":         {[]http.HandlerFunc{ok}, 1, ""},
		"503 twice":       {[]http.HandlerFunc{status(503), status(503), ok}, 3, ""},
		"429":             {[]http.HandlerFunc{status(429), ok}, 2, ""},
		"reset":           {[]http.HandlerFunc{reset, ok}, 2, ""},
		"cut in the body": {[]http.HandlerFunc{cut, cut, ok}, 3, ""},
		"one hangs":       {[]http.HandlerFunc{hang, ok}, 2, ""},
		"always 500":      {[]http.HandlerFunc{status(500)}, 4, "attempt 4 of 4: the server returned 500"},
		"501":             {[]http.HandlerFunc{status(501)}, 1, "501"},
		"505":             {[]http.HandlerFunc{status(505)}, 1, "505"},
		"511":             {[]http.HandlerFunc{status(511)}, 1, "511"},
		"404":             {[]http.HandlerFunc{status(404)}, 1, "404"},
		"204":             {[]http.HandlerFunc{status(204)}, 1, "204"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tc.answers[min(int(calls.Add(1)), len(tc.answers))-1](w, r)
			}))
			timeout := 5 * time.Second
			if name == "one hangs" {
				timeout = 200 * time.Millisecond
			}
			c := newCache(t, Config{HTTPMaxAttempts: 4, HTTPTimeout: timeout})
			_, err := rewriteOne(t, c, pluginSpec{name: "p", url: s.URL})
			if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v", err)
			}
			if calls.Load() != tc.calls {
				t.Errorf("%d requests, want %d", calls.Load(), tc.calls)
			}
			if err != nil {
				wantEmpty(t, c)
			}
		})
	}
}

func TestHTTPChecksum(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	c := newCache(t, Config{})
	_, err := rewriteOne(t, c, pluginSpec{name: "p", url: serveBytes(t, module).URL, sha256: sum([]byte("other"))})
	if err == nil || !strings.Contains(err.Error(), "the module's sha256 is "+sum(module)) {
		t.Errorf("error %v", err)
	}
	wantEmpty(t, c)
	if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: serveBytes(t, module).URL, sha256: "nil"}); err != nil {
		t.Errorf("none wanted: %v", err)
	}
}

// endless writes a module without end.
func endless(w http.ResponseWriter, _ *http.Request) {
	chunk := make([]byte, 64<<10)
	_, err := w.Write([]byte("\x00asm\x01\x00\x00\x00"))
	for err == nil {
		_, err = w.Write(chunk)
	}
}

func TestHTTPTooLarge(t *testing.T) {
	t.Parallel()
	module := append(testModule("x", "y"), make([]byte, 4<<20)...)
	for name, h := range map[string]http.Handler{
		"endless":   http.HandlerFunc(endless),
		"gzip bomb": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(gzipped(t, module)) }),
		"tar bomb": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(gzipped(t, tarred(t, "m", string(module))))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{})
			c.maxModule = 1 << 20
			_, err := rewriteOne(t, c, pluginSpec{name: "p", url: serve(t, h).URL})
			if err == nil || !strings.Contains(err.Error(), "larger than 1048576 bytes") {
				t.Errorf("error %v", err)
			}
			wantEmpty(t, c)
		})
	}
	t.Run("cache full", func(t *testing.T) {
		t.Parallel()
		c := newCache(t, Config{MaxCacheBytes: 1 << 20})
		_, err := rewriteOne(t, c, pluginSpec{name: "p", url: serve(t, http.HandlerFunc(endless)).URL})
		if err == nil || !strings.Contains(err.Error(), "the cache is full") {
			t.Errorf("error %v", err)
		}
		wantEmpty(t, c)
	})
}

// TestHTTPStreams is not parallel, because it measures allocations.
func TestHTTPStreams(t *testing.T) {
	const size = 32 << 20
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		_, _ = w.Write([]byte("\x00asm\x01\x00\x00\x00"))
		for range size / len(chunk) {
			_, _ = w.Write(chunk)
		}
	}))
	c := newCache(t, Config{})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: s.URL}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/8 {
		t.Errorf("%d bytes allocated for a module of %d", n, size)
	}
}

func TestHTTPMerges(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	var calls atomic.Int32
	enough := make(chan struct{})
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		<-enough
		_, _ = w.Write(module)
	}))
	c := newCache(t, Config{})
	var wg sync.WaitGroup
	for i := range 20 {
		resource := pluginSpec{name: fmt.Sprint("p", i), url: s.URL}.resource(t)
		wg.Go(func() {
			if o := c.Rewrite(t.Context(), [][]byte{resource, resource}); o[0].Err != nil || o[1].Err != nil {
				t.Errorf("outcomes %v", o)
			}
		})
	}
	close(enough)
	wg.Wait()
	// A request after the end of the first download finds the module in the cache.
	if n := calls.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestHTTPAsksAgain checks when the origin is contacted although the module is cached.
func TestHTTPAsksAgain(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	version := func(v string) map[string]string { return map[string]string{hintVersion: v} }
	cases := map[string]struct {
		first, second pluginSpec
		calls         int32
	}{
		"same":             {pluginSpec{env: version("1")}, pluginSpec{env: version("1")}, 1},
		"without versions": {pluginSpec{}, pluginSpec{}, 1},
		"edited":           {pluginSpec{env: version("1")}, pluginSpec{env: version("2")}, 2},
		"edited, checksum": {pluginSpec{env: version("1"), sha256: sum(module)}, pluginSpec{env: version("2"), sha256: sum(module)}, 1},
		"edited, if absent": {pluginSpec{env: version("1")}, pluginSpec{env: map[string]string{
			hintVersion: "2", hintPullPolicy: "IfNotPresent",
		}}, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				_, _ = w.Write(module)
			}))
			c := newCache(t, Config{})
			for _, spec := range []pluginSpec{tc.first, tc.second} {
				spec.name, spec.url = "p", s.URL
				if _, err := rewriteOne(t, c, spec); err != nil {
					t.Fatal(err)
				}
			}
			if calls.Load() != tc.calls {
				t.Errorf("%d requests, want %d", calls.Load(), tc.calls)
			}
		})
	}
}

func TestFailureIsRemembered(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	c := newCache(t, Config{})
	spec := pluginSpec{name: "p", url: s.URL}
	for range 3 {
		if _, err := rewriteOne(t, c, spec); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("error %v", err)
		}
	}
	if calls.Load() != 1 {
		t.Errorf("%d requests", calls.Load())
	}
	spec.env = map[string]string{hintVersion: "edited"}
	if _, err := rewriteOne(t, c, spec); err == nil || calls.Load() != 2 {
		t.Errorf("edited: error %v, %d requests", err, calls.Load())
	}
}

// TestImpatience uses a caller that does not wait for the end of the download, which then serves
// the next caller.
func TestImpatience(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	asked, answer := make(chan struct{}), make(chan struct{})
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write(module)
	}))
	c := newCache(t, Config{})
	spec := pluginSpec{name: "p", url: s.URL}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if o := c.Rewrite(ctx, [][]byte{spec.resource(t)})[0]; o.Err == nil {
		t.Error("a module without an answer")
	}
	close(answer)
	if _, err := rewriteOne(t, c, spec); err != nil {
		t.Error(err)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	s := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	c := newCache(t, Config{})
	_, err := rewriteOne(t, c, pluginSpec{name: "p", url: s.URL, timeout: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("error %v", err)
	}
}

// TestRunEndsDownloads checks that no download continues after the end.
func TestRunEndsDownloads(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	s.Listener = listen(t, testHost)
	s.Start()
	defer s.Close()
	c, err := New(Config{Dir: t.TempDir(), AllowedHosts: []string{testNetwork}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	spec := pluginSpec{name: "p", url: s.URL, timeout: time.Minute}.resource(t)
	done := make(chan Outcome, 1)
	go func() { done <- c.Rewrite(t.Context(), [][]byte{spec})[0] }()
	<-asked
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Error(err)
	}
	if o := <-done; o.Err == nil {
		t.Error("a module without an answer")
	}
	if o := c.Rewrite(t.Context(), [][]byte{spec})[0]; o.Err == nil {
		t.Error("a module after the end")
	}
}
