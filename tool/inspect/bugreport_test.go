// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// filesOf returns the files of an archive.
func filesOf(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it is only read
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for in := tar.NewReader(plain); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}

// TestBugReport plants secrets in the answers of a control plane. The report must have the answers
// without them.
func TestBugReport(t *testing.T) {
	t.Parallel()
	cert, key := keyPair(t, 1, now, now.AddDate(1, 0, 0))
	const token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQifQ.c2lnbmF0dXJlLW9mLWEtdG9rZW4"
	ssh := base64.StdEncoding.EncodeToString([]byte("-----BEGIN OPENSSH PRIVATE KEY-----\nplanted-6\n-----END OPENSSH PRIVATE KEY-----\n"))
	planted := map[string]any{
		"kept": "spec.hosts", "credentialName": "web-certificate", "a": map[string]any{"password": "planted-1", "tokens": []any{"planted-2"}},
		"env":            []any{map[string]any{"name": "API_KEY", "value": "planted-3"}, map[string]any{"name": "REGION", "value": "kept-region"}},
		"tlsCertificate": map[string]any{"privateKey": map[string]any{"inlineBytes": base64.StdEncoding.EncodeToString([]byte(key))}},
		"text":           "before\n" + key + "after", "other": base64.StdEncoding.EncodeToString([]byte(key)), "header": "Authorization: Bearer " + token, "loose": "x=" + token,
		"legacy": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nplanted-5\n-----END RSA PRIVATE KEY-----\nkept-after",
		"bundle": base64.StdEncoding.EncodeToString([]byte(cert + key)), "certificate": base64.StdEncoding.EncodeToString([]byte(cert)),
		"ssh": ssh, "generic_secret": map[string]any{"secret": map[string]any{"inline_string": "planted-10"}},
		"cut": "-----BEGIN EC PRIVATE KEY-----\nplanted-7", "redis": "redis://:planted-8@redis:6379",
		"url": "https://user:planted-4@example.com/a", "tlsCertificateSdsSecretConfigs": []any{map[string]any{"name": "kept-name"}},
	}
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/debug/proxies":
			_ = json.NewEncoder(w).Encode(testMesh()[1].value)
		case "/debug/mesh":
			http.Error(w, "not now", http.StatusServiceUnavailable)
		case "/metrics":
			_, _ = io.WriteString(w, "pilot_xds 3\n# Bearer "+token+"\n# authorization: planted-9\n")
		default:
			_ = json.NewEncoder(w).Encode(planted)
		}
	}))
	t.Cleanup(replica.Close)
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	at := strings.TrimPrefix(replica.URL, "http://")
	out, errs, code := run(t, "bug-report", "--file", name, "--control", at, "--control", listenNowhere(t), "--proxies", "1")
	if code != 0 || errs != "" {
		t.Fatalf("code %d: %s", code, errs)
	}
	files := filesOf(t, name)
	dir := "outrigger-report/" + strings.ReplaceAll(at, ":", "_") + "/"
	var names []string
	for file, text := range files {
		names = append(names, strings.TrimPrefix(file, dir))
		for _, secret := range []string{"planted-", strings.Split(key, "\n")[1], base64.StdEncoding.EncodeToString([]byte(key))[40:80], ssh[:40], token[25:60]} {
			if strings.Contains(text, secret) {
				t.Errorf("%s contains the secret %q", file, secret)
			}
		}
	}
	for _, want := range []string{"proxies.json", "configz.json", "history.json", "metrics.txt", "outrigger-report/about.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("the report has the files %q, want %s", names, want)
		}
	}
	if n := len(slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, "proxies/") })); n != 1 {
		t.Errorf("proxies in the report = %d, want 1", n)
	}
	for _, want := range []string{"kept-region", "web-certificate", "kept-name", "spec.hosts", "kept-after", base64.StdEncoding.EncodeToString([]byte(cert)), redact.Mark} {
		if !strings.Contains(files[dir+"configz.json"], want) {
			t.Errorf("configz.json lacks %q:\n%s", want, files[dir+"configz.json"])
		}
	}
	for _, want := range []string{"mesh.json: it returned 503: not now", "1 other proxy", "collected ", name} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the report: %v, %v, want 0600", info.Mode(), err)
	}
	if _, errs, code := run(t, "bug-report", "--file", name, "--control", at); code != exitUsage || !strings.Contains(errs, "exists: remove it") {
		t.Errorf("a second report: code %d: %s", code, errs)
	}
	if _, errs, code := run(t, "bug-report", "--file", name+"2", "--control", listenNowhere(t)); code != exitFailed || !strings.Contains(errs, "no control plane was reached") {
		t.Errorf("without a control plane: code %d: %s", code, errs)
	}
}

// TestBugReportIsBounded asks a control plane whose answers never end, and reads the end of a long log.
func TestBugReportIsBounded(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/proxies" {
			_, _ = io.WriteString(w, "{}") // the test sees what is missing
			return
		}
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	out, errs, code := run(t, "bug-report", "--file", name, "--control", silent.URL, "--timeout", "1h", "--within", "300ms")
	if code != 0 || !strings.Contains(out, "incomplete: 300ms were not enough") || len(filesOf(t, name)) == 0 {
		t.Errorf("code %d: %s%s", code, errs, out)
	}
	if _, errs, code := run(t, "bug-report", "--file", name, "--control", silent.URL, "--within", "0s"); code != exitUsage || !strings.Contains(errs, "must be more than 0") {
		t.Errorf("code %d: %s", code, errs)
	}
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("first line\nsecond\nthird\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]string{100: "first line\nsecond\nthird\n", 15: "second\nthird\n", 2: ""} {
		if text, err := endOf(log, most); err != nil || string(text) != want {
			t.Errorf("%d bytes: %q, %v", most, text, err)
		}
	}
}
