// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
)

func keySetText(t testing.TB) string {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// serve runs an issuer on a separate loopback address.
func serve(t *testing.T, handler http.Handler, secure bool) *httptest.Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.77.46.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(handler)
	s.Listener = l
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if secure {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{serverCertificate(t)}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func serverCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 77, 46, 1)}, NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func trust(s *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

func TestFetch(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	plain := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }), false)
	mux := http.NewServeMux()
	s := serve(t, mux, true)
	answer := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	answer("/keys", text)
	answer("/big", `{"keys":[],"x":"`+strings.Repeat("x", maxKeySet)+`"}`)
	answer("/html", "<html>")
	answer("/none", `{"keys":[{"kty":"oct","k":"AAAA"}]}`)
	answer("/mixed", `{"keys":[{"kty":"new"},{"kty":"oct","k":"AAAA"},`+text[len(`{"keys":[`):])
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/keys", http.StatusFound) })
	for path, to := range map[string]string{
		"/out": "https://evil.test/keys", "/plain": plain.URL, "/metadata": "http://169.254.169.254/latest", "/file": "file:///etc/passwd",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
	}
	open := FetchConfig{AllowLoopback: true, RootCAs: trust(s)}
	for name, tc := range map[string]struct {
		cfg     FetchConfig
		url     string
		wantErr string
	}{
		"good":                           {open, s.URL + "/keys", ""},
		"redirect on the same host":      {open, s.URL + "/moved", ""},
		"unknown kinds of keys":          {open, s.URL + "/mixed", ""},
		"plain http to loopback":         {FetchConfig{AllowLoopback: true, AllowedHosts: []string{plain.Listener.Addr().String()}}, plain.URL, ""},
		"loopback not allowed":           {FetchConfig{RootCAs: trust(s)}, s.URL + "/keys", "of this machine"},
		"server of an unknown authority": {FetchConfig{AllowLoopback: true}, s.URL + "/keys", "certificate"},
		"too big":                        {open, s.URL + "/big", "more than 1048576 bytes"},
		"not JSON":                       {open, s.URL + "/html", "invalid character"},
		"no usable key":                  {open, s.URL + "/none", "holds no key"},
		"not found":                      {open, s.URL + "/nothing", "status 404"},
		"endless redirects":              {open, s.URL + "/loop", "redirected more than 3"},
		"redirected to another host":     {open, s.URL + "/out", "evil.test:443 is not among the allowed hosts"},
		"redirected to plaintext":        {open, s.URL + "/plain", "is not among the allowed hosts"},
		"redirected to metadata":         {open, s.URL + "/metadata", "is not https"},
		"redirected to a file":           {open, s.URL + "/file", "no host"},
		"other host":                     {open, "https://evil.test/keys", "is not among the allowed hosts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := newFetcher(tc.cfg, s.URL)
			if err != nil {
				t.Fatal(err)
			}
			set, err := f.keys(t.Context(), tc.url, s.URL)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || len(set.keys) != 1 {
				t.Fatalf("got %v, error %v", set, err)
			}
		})
	}
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	mux := http.NewServeMux()
	s := serve(t, mux, true)
	for path, doc := range map[string]string{
		"/good":  fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, s.URL+"/good", s.URL+"/keys"),
		"/slash": fmt.Sprintf(`{"issuer":%q,"jwks_uri":%q}`, s.URL+"/slash/", s.URL+"/keys"),
		"/other": fmt.Sprintf(`{"issuer":"https://other.test","jwks_uri":%q}`, s.URL+"/keys"),
		"/none":  fmt.Sprintf(`{"issuer":%q}`, s.URL+"/none"),
		"/out":   fmt.Sprintf(`{"issuer":%q,"jwks_uri":"https://evil.test/keys"}`, s.URL+"/out"),
		"/big":   strings.Repeat(" ", maxDocument+1),
	} {
		mux.HandleFunc(path+discoveryPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, doc) })
	}
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	for path, wantErr := range map[string]string{
		"/good": "", "/slash/": "", "/slash": "is that of issuer", "/other": "is that of issuer", "/none": "names no jwks_uri",
		"/out": "not among the allowed hosts", "/big": "more than", "/missing": "status 404",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			j, err := NewJWT(JWTConfig{
				Issuer: s.URL + path, Audiences: []string{"a"}, TrustDomain: "cluster.local", Logger: slog.New(slog.DiscardHandler),
				Fetch: FetchConfig{AllowLoopback: true, RootCAs: trust(s), Wait: 500 * time.Millisecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			set, err := j.keys.(*remoteKeys).fetch(t.Context())
			if wantErr == "" && (err != nil || len(set.keys) != 1) || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
				t.Fatalf("got %v, error %v, want one with %q", set, err, wantErr)
			}
		})
	}
}

func TestSlowIssuer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), true)
	t.Cleanup(func() { close(release) })
	f, err := newFetcher(FetchConfig{AllowLoopback: true, RootCAs: trust(s)}, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	f.client.Timeout = 50 * time.Millisecond
	if _, err := f.keys(context.WithoutCancel(t.Context()), s.URL, s.URL); err == nil || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("got error %v", err)
	}
}

func TestForbiddenAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.1": "of this machine", "::1": "of this machine", "::ffff:127.0.0.1": "of this machine", "64:ff9b::7f00:1": "of this machine",
		"169.254.169.254": "link-local", "::ffff:169.254.169.254": "link-local", "64:ff9b::a9fe:a9fe": "link-local", "fe80::1%eth0": "link-local",
		"0.0.0.0": "unspecified", "::": "unspecified", "224.0.0.1": "multicast", "ff02::1": "multicast",
		"fd00:ec2::254": "a metadata server", "168.63.129.16": "a metadata server", "100.100.100.200": "a metadata server",
		"10.0.0.1": "", "192.168.1.1": "", "8.8.8.8": "", "2001:db8::1": "", "fd00::1": "",
	} {
		if got := forbidden(netip.MustParseAddr(address), false); got != want {
			t.Errorf("%s is %q, want %q", address, got, want)
		}
	}
	if got := forbidden(netip.MustParseAddr("127.0.0.1"), true); got != "" {
		t.Errorf("loopback is %q although it is allowed", got)
	}
	if got := forbidden(netip.MustParseAddr("169.254.169.254"), true); got == "" {
		t.Error("link-local is allowed with loopback")
	}
}

func FuzzCheckURL(f *testing.F) {
	f.Add("https://issuer.test/keys")
	f.Add("https://issuer.test@evil.test/keys")
	f.Add("https://ISSUER.test:443//x")
	f.Add("http://127.0.0.1\\@issuer.test/")
	fetcher, err := newFetcher(FetchConfig{}, "https://issuer.test")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, address string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		if err != nil || fetcher.checkURL(req.URL) != nil {
			return
		}
		if req.URL.Scheme != "https" || !strings.EqualFold(req.URL.Hostname(), "issuer.test") || req.URL.Port() != "" && req.URL.Port() != "443" {
			t.Fatalf("%q would be asked", address)
		}
	})
}
