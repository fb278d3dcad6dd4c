// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSpecialAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "0.0.0.0": true, "0.1.2.3": true, "169.254.169.254": true, "169.254.0.1": true,
		"100.100.100.200": true, "168.63.129.16": true, "192.0.0.192": true, "224.0.0.1": true, "255.255.255.255": true, "240.0.0.1": true,
		"::1": true, "::": true, "fe80::1": true, "ff02::1": true, "fd00:ec2::254": true, "fd20:ce::254": true,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b::7f00:1": true,
		"2002:7f00:1::": true, "2002:a9fe:a9fe::1": true, "::127.0.0.1": true, "::169.254.169.254": true, "64:ff9b:1::a9fe:a9fe": true, "::ffff:0:7f00:1": true,
		"10.0.0.1": false, "192.168.1.1": false, "172.16.0.1": false, "8.8.8.8": false, "100.64.0.1": false, "168.63.129.17": false,
		"2001:db8::1": false, "fd00::1": false, "64:ff9b::808:808": false, "64:ff9b:1::808:808": false, "2002:808:808::1": false,
	} {
		if got := special(netip.MustParseAddr(address).Unmap()); got != want {
			t.Errorf("%s: got %t", address, got)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	t.Parallel()
	a, err := parseAllowed([]string{" Registry.Local ", "other:5000", "169.254.7.0/24", "127.0.0.9", "[::1]", ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		address, resolved string
		ok                bool
	}{
		{"registry.local:443", "127.0.0.1:443", true},
		{"REGISTRY.LOCAL:80", "127.0.0.1:80", true},
		{"other:5000", "127.0.0.1:5000", true},
		{"other:5001", "127.0.0.1:5001", false},
		{"x:80", "169.254.7.8:80", true},
		{"x:80", "169.254.8.8:80", false},
		{"x:80", "127.0.0.9:80", true},
		{"x:80", "127.0.0.1:80", false},
		{"x:80", "[::1]:80", true},
		{"x:80", "[fe80::1%eth0]:80", false},
		{"x:80", "[::ffff:127.0.0.1]:80", false},
		{"x:80", "10.0.0.1:80", true},
		{"x:80", "nonsense", false},
	} {
		err := a.check(tc.address, tc.resolved)
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, errRefused) {
			t.Errorf("%s at %s: %v", tc.address, tc.resolved, err)
		}
	}
	for _, bad := range []string{"10.0.0.0/40", "x/y"} {
		if _, err := parseAllowed([]string{bad}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

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
		"nothing set":   {"file://" + dir + "/m.wasm", "", "no directory is configured"},
		"outside":       {"file://" + outside + "/m.wasm", dir, "is not below"},
		"dots":          {"file://" + dir + "/../" + filepath.Base(outside) + "/m.wasm", dir, "is not below"},
		"escaped dots":  {"file://" + dir + "/%2e%2e/" + filepath.Base(outside) + "/m.wasm", dir, "is not below"},
		"link outside":  {"file://" + dir + "/outside", dir, "escapes"},
		"linked folder": {"file://" + dir + "/up/m.wasm", dir, "escapes"},
		"pipe":          {"file://" + dir + "/pipe", dir, "no regular file"},
		"folder":        {"file://" + dir, dir, "no regular file"},
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
