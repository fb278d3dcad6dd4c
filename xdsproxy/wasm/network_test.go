// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRefused uses URLs that lead to forbidden addresses, directly and by redirects. The servers
// exist: a request to one of them fails the test.
func TestRefused(t *testing.T) {
	t.Parallel()
	inner := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") }))
	redirect := func(to string) string {
		s := &httptest.Server{Listener: listen(t, "127.77.49.2"), Config: &http.Server{Handler: http.RedirectHandler(to, http.StatusFound)}}
		s.Start()
		t.Cleanup(s.Close)
		return s.URL
	}
	port := inner.URL[strings.LastIndexByte(inner.URL, ':'):]
	for name, url := range map[string]string{
		"direct": inner.URL, "oci": "oci" + strings.TrimPrefix(inner.URL, "http") + "/repo:tag", "mapped": "http://[::ffff:127.77.49.1]" + port,
		"redirect": redirect(inner.URL + "/m.wasm"), "metadata": "http://169.254.169.254/latest", "zero": "http://0.0.0.0" + port,
		"decimal": "http://2130706433" + port, "localhost": "http://localhost" + port, "redirect to a file": redirect("file:///etc/passwd"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{AllowedHosts: []string{"127.77.49.2"}, HTTPMaxAttempts: 2})
			_, err := rewriteOne(t, c, pluginSpec{name: "p", url: url})
			// Names that cannot be resolved fail as well.
			if err == nil || !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "lookup") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	plain := serveBytes(t, module)
	secure := httptest.NewUnstartedServer(http.RedirectHandler(plain.URL, http.StatusFound))
	secure.Listener = listen(t, testHost)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // expected handshake errors
	secure.StartTLS()
	t.Cleanup(secure.Close)
	loop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }))
	host := func(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
	for name, tc := range map[string]struct {
		url      string
		insecure []string
		err      string
	}{
		"http to http":   {serve(t, http.RedirectHandler(plain.URL, http.StatusFound)).URL, nil, ""},
		"loop":           {loop.URL, nil, "more than 10 redirects"},
		"https to http":  {secure.URL, []string{host(secure.URL)}, "from https to http"},
		"allowed":        {secure.URL, []string{host(secure.URL), host(plain.URL)}, ""},
		"all insecure":   {secure.URL, []string{"*"}, ""},
		"unknown issuer": {secure.URL, nil, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{InsecureRegistries: tc.insecure, HTTPMaxAttempts: 1})
			_, err := rewriteOne(t, c, pluginSpec{name: "p", url: tc.url})
			if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestNoProxy checks that the proxy of the environment is not used.
func TestNoProxy(t *testing.T) {
	t.Parallel()
	n, err := newNetwork(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rt := range []http.RoundTripper{n.verified, n.unverified} {
		if tr, ok := rt.(*http.Transport); !ok || tr.Proxy != nil || tr.TLSClientConfig.MinVersion < tls.VersionTLS12 {
			t.Errorf("transport %+v", rt)
		}
	}
}

func TestSecretsAreNotSaid(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{HTTPMaxAttempts: 1})
	for _, url := range []string{"http://user:hunter2@127.77.49.9:1/m.wasm?token=hunter2", "http://hunter2\x7f", "http://user:hunter2@127.0.0.1/"} {
		_, err := rewriteOne(t, c, pluginSpec{name: "p", url: url})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error %v", err)
		}
	}
}

func TestFileURL(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	outside, dir := t.TempDir(), t.TempDir()
	write := func(path string) {
		if err := os.WriteFile(path, module, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(outside, "m.wasm"))
	write(filepath.Join(dir, "m.wasm"))
	for link, to := range map[string]string{"inside": "m.wasm", "outside": filepath.Join(outside, "m.wasm"), "up": outside} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		url, allowed string
		err          string
	}{
		"below":         {"file://" + dir + "/m.wasm", dir, ""},
		"link inside":   {"file://" + dir + "/inside", dir, ""},
		"nothing set":   {"file://" + dir + "/m.wasm", "", "no directory for Wasm modules in files is configured"},
		"outside":       {"file://" + outside + "/m.wasm", dir, "is not below"},
		"dots":          {"file://" + dir + "/../" + filepath.Base(outside) + "/m.wasm", dir, "is not below"},
		"escaped dots":  {"file://" + dir + "/%2e%2e/" + filepath.Base(outside) + "/m.wasm", dir, "is not below"},
		"link outside":  {"file://" + dir + "/outside", dir, "escapes"},
		"linked folder": {"file://" + dir + "/up/m.wasm", dir, "escapes"},
		"pipe":          {"file://" + dir + "/pipe", dir, "not a regular file"},
		"folder":        {"file://" + dir, dir, "not a regular file"},
		"missing":       {"file://" + dir + "/x", dir, "no such file"},
		"host":          {"file://host" + dir + "/m.wasm", dir, "on another host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, err := rewriteOne(t, newCache(t, Config{FileDir: tc.allowed}), pluginSpec{name: "p", url: tc.url})
			if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v", err)
			}
			if err == nil && string(readFile(t, path)) != string(module) {
				t.Error("the file is not the module")
			}
			u, err := url.Parse(tc.url)
			if err != nil || u.Host != "" {
				return // local code has no host
			}
			checkLocalCode(t, newCache(t, Config{FileDir: tc.allowed}), u.Path, tc.err)
		})
	}
}
