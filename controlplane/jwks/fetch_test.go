// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
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
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
)

// patience is the time limit of fetches that must not time out.
const patience = 2 * time.Minute

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
		s.EnableHTTP2 = true
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

func trust(servers ...*httptest.Server) func() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, s := range servers {
		pool.AddCert(s.Certificate())
	}
	return func() (*x509.CertPool, error) { return pool, nil }
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
	answer("/big", `{"keys":[],"x":"`+strings.Repeat("x", maxDocument)+`"}`)
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
	open := FetchConfig{AllowLoopback: true, RootCAs: trust(s), Timeout: patience}
	for name, tc := range map[string]struct {
		cfg     FetchConfig
		url     string
		wantErr string
	}{
		"good":                           {open, s.URL + "/keys", ""},
		"redirect on the same host":      {open, s.URL + "/moved", ""},
		"unknown kinds of keys":          {open, s.URL + "/mixed", ""},
		"plain http to loopback":         {FetchConfig{AllowLoopback: true, AllowedHosts: []string{plain.Listener.Addr().String()}, Timeout: patience}, plain.URL, ""},
		"loopback not allowed":           {FetchConfig{RootCAs: trust(s), Timeout: patience}, s.URL + "/keys", "a loopback, link-local"},
		"server of an unknown authority": {FetchConfig{AllowLoopback: true, Timeout: patience}, s.URL + "/keys", "certificate"},
		"too large":                      {open, s.URL + "/big", "more than 262144 bytes"},
		"not JSON":                       {open, s.URL + "/html", "invalid character"},
		"no usable key":                  {open, s.URL + "/none", "contains no public key"},
		"not found":                      {open, s.URL + "/nothing", "status 404"},
		"endless redirects":              {open, s.URL + "/loop", "more than 3 redirects"},
		"redirected to another host":     {open, s.URL + "/out", "evil.test:443 is not among the allowed hosts"},
		"redirected to plaintext":        {open, s.URL + "/plain", "is not among the allowed hosts"},
		"redirected to metadata":         {open, s.URL + "/metadata", "is not https"},
		"redirected to a file":           {open, s.URL + "/file", "no host"},
		"other host":                     {open, "https://evil.test/keys", "is not among the allowed hosts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := newFetcher(tc.cfg, Source{URL: tc.url, Issuer: s.URL})
			var got *fetched
			if err == nil {
				got, err = f.fetch(t.Context())
			}
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || len(got.set.Keys) != 1 {
				t.Fatalf("got %v, error %v; want one key", got, err)
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
			f, err := newFetcher(FetchConfig{AllowLoopback: true, RootCAs: trust(s), Timeout: patience}, Source{Issuer: s.URL + path})
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.fetch(t.Context())
			if wantErr == "" && (err != nil || len(got.set.Keys) != 1) || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
				t.Fatalf("got %v, error %v; want an error with %q", got, err, wantErr)
			}
		})
	}
}

// TestSlowIssuer fetches from issuers that do not respond, or do not complete the response.
func TestSlowIssuer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/hangs", func(http.ResponseWriter, *http.Request) { <-release })
	mux.HandleFunc("/trickles", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"keys":[`)
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	s := serve(t, mux, true)
	t.Cleanup(func() { close(release) })
	for _, path := range []string{"/hangs", "/trickles"} {
		f, err := newFetcher(FetchConfig{AllowLoopback: true, RootCAs: trust(s), Timeout: 50 * time.Millisecond}, Source{URL: s.URL + path, Issuer: s.URL})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "no complete response within 50ms") {
			t.Errorf("%s: got error %v, want a timeout", path, err)
		}
	}
}

// TestAnyHost fetches from hosts that users of the mesh configured.
func TestAnyHost(t *testing.T) {
	t.Parallel()
	text := keySetText(t)
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", `public, Max-Age="90"`)
		_, _ = io.WriteString(w, text)
	})
	plain, secure := serve(t, answer, false), serve(t, answer, true)
	redirect := func(to string) string {
		return serve(t, http.RedirectHandler(to, http.StatusFound), false).URL
	}
	downgrade := serve(t, http.RedirectHandler(plain.URL, http.StatusFound), true)
	roots := trust(secure, downgrade)
	inner, err := net.Listen("tcp", "127.77.46.9:0")
	if err != nil {
		t.Fatal(err)
	}
	hidden := &httptest.Server{Listener: inner, Config: &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") })}}
	hidden.Start()
	t.Cleanup(hidden.Close)
	port := hidden.URL[strings.LastIndexByte(hidden.URL, ':'):]
	for name, tc := range map[string]struct{ url, wantErr string }{
		"https":                      {secure.URL, ""},
		"http":                       {plain.URL, ""},
		"http to https":              {redirect(secure.URL), ""},
		"http to another host":       {redirect(plain.URL), ""},
		"https to http":              {downgrade.URL, "is not https"},
		"loopback":                   {hidden.URL, "a loopback, link-local"},
		"loopback, by name":          {"http://localhost" + port, "a loopback, link-local"},
		"loopback, mapped":           {"http://[::ffff:127.77.46.9]" + port, "a loopback, link-local"},
		"unspecified":                {"http://0.0.0.0" + port, "a loopback, link-local"},
		"redirect to loopback":       {redirect(hidden.URL), "a loopback, link-local"},
		"redirect to metadata":       {redirect("http://169.254.169.254/latest"), "a loopback, link-local"},
		"redirect to a password":     {redirect("http://a:b@127.77.46.1/"), "contains a password"},
		"redirect to another scheme": {redirect("file:///etc/passwd"), "names no host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allowed, err := specialaddr.ParseAllowed([]string{"127.77.46.1"})
			if err != nil {
				t.Fatal(err)
			}
			f, err := newFetcher(FetchConfig{AnyHost: true, Allowed: allowed, RootCAs: roots, Timeout: patience}, Source{URL: tc.url})
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.fetch(t.Context())
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || len(got.set.Keys) != 1 || got.maxAge != 90*time.Second {
				t.Fatalf("got %+v, error %v; want one key with a max-age of 90 s", got, err)
			}
		})
	}
}

func FuzzCheckURL(f *testing.F) {
	f.Add("https://issuer.test/keys")
	f.Add("https://issuer.test@evil.test/keys")
	f.Add("https://ISSUER.test:443//x")
	f.Add("http://127.0.0.1\\@issuer.test/")
	f.Add("https://]issuer.test")
	fetcher, err := newFetcher(FetchConfig{}, Source{Issuer: "https://issuer.test"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, address string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		if err != nil || fetcher.checkURL(req.URL) != nil {
			return
		}
		if req.URL.Scheme != "https" || !strings.EqualFold(req.URL.Hostname(), "issuer.test") || req.URL.Port() != "" && req.URL.Port() != "443" {
			t.Fatalf("CheckURL accepted %q", address)
		}
	})
}
