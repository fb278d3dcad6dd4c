// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"archive/tar"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// TestHostileRegistry uses a registry that redirects requests for a token, a manifest and a layer
// to forbidden addresses.
func TestHostileRegistry(t *testing.T) {
	t.Parallel()
	forbidden := &httptest.Server{
		Listener: listen(t, "127.0.0.1"),
		Config:   &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") })},
	}
	forbidden.Start()
	// Use a name, which is resolved on dial: the library itself rejects some addresses.
	byName := strings.Replace(forbidden.URL, "127.0.0.1", "localhost", 1)
	t.Cleanup(forbidden.Close)
	sends := func(part, to string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, part) {
				return false
			}
			http.Redirect(w, req, to+"/latest/meta-data", http.StatusTemporaryRedirect)
			return true
		}
	}
	realm := func(to string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s",service="s"`, to))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	for name, spoil := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"token": realm(forbidden.URL + "/token"), "token by name": realm(byName + "/token"), "token of the metadata": realm("http://169.254.169.254/latest"), "token of a file": realm("file:///etc/passwd"),
		"manifest": sends("/manifests/", forbidden.URL), "manifest by name": sends("/manifests/", byName),
		"layer": sends("/blobs/", forbidden.URL), "layer by name": sends("/blobs/", byName), "greeting": sends("/v2/", byName),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, false, "")
			r.push(t, "x:v1", artifact(t, testModule("x", "y")))
			r.mu.Lock()
			r.spoil = spoil
			r.mu.Unlock()
			c := newCache(t, Config{HTTPMaxAttempts: 1})
			_, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/x:v1"})
			if err == nil || strings.Contains(name, "by name") && !strings.Contains(err.Error(), "allow it in OUTRIGGER_WASM_ALLOWED_HOSTS") {
				t.Errorf("error %v", err)
			}
			wantEmpty(t, c)
		})
	}
}

// TestCredentialsStay uses a registry that redirects to a store on another host, like large
// registries do: the store receives no credentials.
func TestCredentialsStay(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	var asked atomic.Int32
	store := &httptest.Server{Listener: listen(t, "127.0.0.1"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		if auth := req.Header.Get("Authorization"); auth != "" {
			t.Errorf("it gets the credentials %q", auth)
		}
		_, _ = w.Write(module)
	})}}
	store.StartTLS()
	t.Cleanup(store.Close)
	for _, auth := range []string{basicAuth, tokenAuth} {
		r := newRegistry(t, true, auth)
		r.user = "me"
		r.push(t, "x:v1", artifact(t, module))
		r.spoil = func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.Contains(req.URL.Path, "/blobs/") {
				return false
			}
			http.Redirect(w, req, strings.Replace(store.URL, "127.0.0.1", "localhost", 1)+"/stored", http.StatusTemporaryRedirect)
			return true
		}
		spec := pluginSpec{name: "p", url: "oci://" + r.host + "/x:v1", env: map[string]string{hintPullSecret: dockerConfig(r.host, "me")}}
		path, err := rewriteOne(t, newCache(t, Config{InsecureRegistries: []string{"*"}, HTTPMaxAttempts: 1, AllowedHosts: []string{testNetwork, "localhost"}}), spec)
		if err != nil || string(readFile(t, path)) != string(module) {
			t.Errorf("%s: %v", auth, err)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("the store received %d requests", asked.Load())
	}
}

// TestBombs uses layers that are small but expand to large data.
func TestBombs(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	huge := string(testModule("x", "y")) + strings.Repeat("\x00", 4*most)
	var sparse bytes.Buffer
	w := tar.NewWriter(&sparse)
	// A file of 2^50 bytes that consists of a hole (GNU tar's PAX format 1.0).
	body := "0\n" + strings.Repeat("\x00", 510)
	if err := w.WriteHeader(&tar.Header{Name: pluginFile, Typeflag: tar.TypeReg, Size: int64(len(body)), Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": pluginFile, "GNU.sparse.realsize": fmt.Sprint(1 << 50),
	}}); err != nil {
		t.Logf("the library does not write sparse files (%v), so the test writes the header itself", err)
		sparse.Reset()
		sparse.Write(sparseTar(t, body))
	} else if _, err := w.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	for name, layer := range map[string][]byte{
		"the module":       gzipped(t, tarred(t, pluginFile, huge)),
		"a file before":    gzipped(t, tarred(t, "before", strings.Repeat("\x00", 4*most), pluginFile, string(testModule("x", "y")))),
		"a sparse file":    gzipped(t, sparse.Bytes()),
		"a bomb in a bomb": gzipped(t, tarred(t, pluginFile, string(gzipped(t, []byte(huge))))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, false, "")
			r.push(t, "x:v1", newImage(t, types.OCIManifestSchema1, static.NewLayer(layer, types.OCILayer)))
			c := newCache(t, Config{HTTPMaxAttempts: 1})
			c.maxModule = most
			if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/x:v1"}); err == nil ||
				!strings.Contains(err.Error(), "larger than") && !strings.Contains(err.Error(), "not a WebAssembly module") {
				t.Errorf("error %v", err)
			}
			wantEmpty(t, c)
		})
	}
}

// sparseTar returns an archive with one sparse file, written block by block.
func sparseTar(t *testing.T, body string) []byte {
	t.Helper()
	record := func(key, value string) string {
		size := len(key) + len(value) + 3
		n := size + len(fmt.Sprint(size))
		if len(fmt.Sprint(n)) != len(fmt.Sprint(size)) {
			n++
		}
		return fmt.Sprintf("%d %s=%s\n", n, key, value)
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", pluginFile) + record("GNU.sparse.realsize", fmt.Sprint(1<<50))
	block := func(name string, kind byte, size int) []byte {
		b := make([]byte, 512)
		copy(b, name)
		copy(b[100:], "0000644\x000000000\x000000000\x00")
		copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		copy(b[148:], "        ")
		var check int
		for _, c := range b {
			check += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", check))
		return b
	}
	pad := func(s string) []byte { return append([]byte(s), make([]byte, (512-len(s)%512)%512)...) }
	out := append(block("x", 'x', len(pax)), pad(pax)...)
	out = append(append(out, block(pluginFile, '0', len(body))...), pad(body)...)
	return append(out, make([]byte, 1024)...)
}

// TestLinkedDirectory replaces the directory of a module with a link: nothing is written to its
// target or served from there.
func TestLinkedDirectory(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	url, _ := counted(t, module)
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, digest(url))); err != nil {
		t.Fatal(err)
	}
	if _, err := rewriteOne(t, newCache(t, Config{Dir: dir}), pluginSpec{name: "p", url: url}); err == nil || !strings.Contains(err.Error(), "is not a directory of the cache") {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("behind the link are %v, %v", left, err)
	}
	// The same after a restart with an index that contains it.
	dir = t.TempDir()
	path, err := rewriteOne(t, newCache(t, Config{Dir: dir}), pluginSpec{name: "p", url: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Dir(path), filepath.Join(outside, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(outside, "moved"), filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	again, err := rewriteOne(t, newCache(t, Config{Dir: dir}), pluginSpec{name: "p", url: url})
	if err != nil || !isRealDir(filepath.Dir(again)) {
		t.Errorf("a module behind a link is served: %s, %v", again, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "moved", filepath.Base(path))); err != nil {
		t.Errorf("a file behind the link was touched: %v", err)
	}
}
