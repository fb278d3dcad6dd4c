// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// made is a certificate with its key.
type made struct {
	cert, key []byte
	parsed    *x509.Certificate
	signer    crypto.Signer
}

// certificate returns a certificate that expires after ttl.
func certificate(t testing.TB, ttl time.Duration) made {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	text, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(ttl),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte{1},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made{cert: certs.EncodeChain(cert), key: text, parsed: cert, signer: key}
}

func (m made) crl(t testing.TB) []byte {
	t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour)}, m.parsed, m.signer)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func TestParse(t *testing.T) {
	t.Parallel()
	a, b, old := certificate(t, time.Hour), certificate(t, time.Hour), certificate(t, -time.Hour)
	for name, tc := range map[string]struct {
		data        map[string][]byte
		pair, roots []byte // the expected key and roots
		warning     string
		wantErr     string
	}{
		"TLS":                     {data: map[string][]byte{"tls.crt": a.cert, "tls.key": a.key}, pair: a.key},
		"TLS with root":           {data: map[string][]byte{"tls.crt": a.cert, "tls.key": a.key, "ca.crt": b.cert}, pair: a.key, roots: b.cert},
		"generic":                 {data: map[string][]byte{"cert": a.cert, "key": a.key, "cacert": b.cert}, pair: a.key, roots: b.cert},
		"generic before TLS":      {data: map[string][]byte{"cert": a.cert, "key": a.key, "tls.crt": b.cert, "tls.key": b.key}, pair: a.key},
		"certificate without key": {data: map[string][]byte{"cert": a.cert, "tls.crt": b.cert, "tls.key": b.key}, pair: b.key},
		"roots only":              {data: map[string][]byte{"cacert": b.cert}, roots: b.cert},
		"empty pair with roots":   {data: map[string][]byte{"tls.crt": {}, "tls.key": {}, "ca.crt": b.cert}, roots: b.cert},
		"chain":                   {data: map[string][]byte{"tls.crt": slices.Concat(a.cert, b.cert), "tls.key": a.key}, pair: a.key},
		"revocation list":         {data: map[string][]byte{"cacert": a.cert, "crl": a.crl(t)}, roots: a.cert},
		"expired":                 {data: map[string][]byte{"tls.crt": old.cert, "tls.key": old.key}, pair: old.key, warning: "expired at"},
		"expired above":           {data: map[string][]byte{"tls.crt": slices.Concat(a.cert, old.cert), "tls.key": a.key}, pair: a.key, warning: "expired at"},
		"expired roots":           {data: map[string][]byte{"cacert": old.cert}, roots: old.cert, warning: "all roots expired"},
		"one of two expired":      {data: map[string][]byte{"cacert": slices.Concat(old.cert, a.cert)}, roots: slices.Concat(old.cert, a.cert)},
		"nothing":                 {wantErr: "but nothing"},
		"something else":          {data: map[string][]byte{"password": []byte("hunter2")}, wantErr: "but password"},
		"other's key":             {data: map[string][]byte{"tls.crt": a.cert, "tls.key": b.key}, wantErr: "tls.key does not belong to the first certificate of tls.crt"},
		"chain in wrong order":    {data: map[string][]byte{"tls.crt": slices.Concat(b.cert, a.cert), "tls.key": a.key}, wantErr: "does not belong"},
		"no certificate":          {data: map[string][]byte{"tls.crt": []byte("hunter2"), "tls.key": a.key}, wantErr: "tls.crt: there is no PEM"},
		"no key":                  {data: map[string][]byte{"tls.crt": a.cert, "tls.key": []byte("hunter2")}, wantErr: "tls.key is not a usable private key"},
		"key among roots":         {data: map[string][]byte{"cacert": slices.Concat(a.cert, a.key)}, wantErr: "not CERTIFICATE"},
		"bad revocation list":     {data: map[string][]byte{"cacert": a.cert, "crl": []byte("hunter2")}, wantErr: "crl is not PEM"},
		"certificate as list":     {data: map[string][]byte{"cacert": a.cert, "ca.crl": a.cert}, wantErr: "ca.crl is not a revocation list"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := Parse("ns", "x", tc.data)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), "credential ns/x") {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error quotes the Secret: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (c.Pair != nil) != (tc.pair != nil) || c.Pair != nil && !bytes.Equal(c.Pair.Key, tc.pair) {
				t.Errorf("pair: got %v", c.Pair)
			}
			if (c.Roots != nil) != (tc.roots != nil) || c.Roots != nil && !bytes.Equal(c.Roots.PEM, tc.roots) {
				t.Errorf("roots: got %v", c.Roots)
			}
			if w := strings.Join(c.Warnings, "; "); (w == "") != (tc.warning == "") || !strings.Contains(w, tc.warning) {
				t.Errorf("warnings: got %q, want %q", w, tc.warning)
			}
		})
	}
}

// TestKeysAreNotPrinted checks that no way of formatting a credential prints its key.
func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	a := certificate(t, time.Hour)
	c, err := Parse("ns", "x", map[string][]byte{"tls.crt": a.cert, "tls.key": a.key})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "a", c, "b", c.Pair, "c", c.Pair.Key)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "a", c, "b", c.Pair, "c", c.Pair.Key)
	var printed strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&printed, verb+verb+verb, *c, *c.Pair, c.Pair.Key)
	}
	block, _ := pem.Decode(a.key)
	// Skip the start: it names the curve, so it is also in the certificate.
	part, raw := a.key[100:120], block.Bytes[40:60]
	for name, text := range map[string]string{"JSON": string(asJSON), "log": log.String(), "fmt": printed.String()} {
		for _, form := range []string{string(part), fmt.Sprintf("%x", part), fmt.Sprintf("%X", part), strings.Trim(fmt.Sprint(part), "[]"), fmt.Sprintf("%x", raw)} {
			if strings.Contains(text, form) {
				t.Errorf("%s contains the key as %s:\n%s", name, form, text)
			}
		}
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Reference{
		"kubernetes://x":           {SchemeKubernetes, "ns", "x"},
		"x":                        {SchemeKubernetes, "ns", "x"},
		"kubernetes://other/x":     {SchemeKubernetes, "other", "x"},
		"kubernetes://x-cacert":    {SchemeKubernetes, "ns", "x-cacert"},
		"kubernetes-gateway://a/b": {SchemeGateway, "a", "b"},
		"kubernetes://my.host.com": {SchemeKubernetes, "ns", "my.host.com"},
	} {
		if got, err := ParseReference(name, "ns"); err != nil || got != want {
			t.Errorf("ParseReference(%s) = %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{
		"", "kubernetes://", "kubernetes:///x", "kubernetes://a/", "kubernetes://a/b/c", "kubernetes-gateway://x", "sds://x", "builtin://",
		"file:///etc/passwd", "kubernetes://../x", "kubernetes://X", "kubernetes://-x", "kubernetes://a b", "kubernetes://a/" + strings.Repeat("x", 254),
	} {
		if got, err := ParseReference(name, "ns"); err == nil {
			t.Errorf("ParseReference(%s) = %+v, want an error", name, got)
		}
	}
	r := Reference{SchemeKubernetes, "a", "x-cacert"}
	for _, tc := range []struct {
		namespace, name string
		want            bool
	}{{"a", "x-cacert", true}, {"a", "x", true}, {"b", "x", false}, {"a", "y", false}, {"a", "x-cacert-cacert", false}} {
		if got := r.Affects(tc.namespace, tc.name); got != tc.want {
			t.Errorf("Affects(%s, %s) = %v", tc.namespace, tc.name, got)
		}
	}
	if (Reference{Name: "-cacert"}).IsRoots() || !r.IsRoots() {
		t.Error("IsRoots does not follow the suffix -cacert")
	}
	if r.CheckNamespace("a", nil) != nil || r.CheckNamespace("b", nil) == nil ||
		r.CheckNamespace("b", func(Reference) bool { return true }) != nil || r.CheckNamespace("b", func(Reference) bool { return false }) == nil {
		t.Error("CheckNamespace does not follow the function")
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	table, err := NewTable(slog.New(slog.NewTextHandler(&log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	table.OnChange(func(namespace, name string) { told = append(told, namespace+"/"+name) })
	a, b := certificate(t, time.Hour), certificate(t, -time.Hour)
	ref := Reference{SchemeKubernetes, "ns", "x"}
	uses := func(what string, key []byte, wantErr string, changes int) {
		t.Helper()
		p, err := KeyPairOf(table, ref)
		switch {
		case wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)):
			t.Errorf("%s: got error %v, want one with %q", what, err, wantErr)
		case wantErr == "" && (err != nil || !bytes.Equal(p.Key, key)):
			t.Errorf("%s: the pair differs, error %v", what, err)
		}
		if len(told) != changes {
			t.Errorf("%s: %d changes were reported, want %d", what, len(told), changes)
		}
	}
	broken := map[string][]byte{"tls.crt": a.cert, "tls.key": b.key}
	uses("empty", nil, "credential not found", 0)
	table.Set("ns", "x", broken)
	uses("broken from the start", nil, "does not belong", 1)
	table.Set("ns", "x", broken)
	uses("still broken", nil, "does not belong", 1)
	table.Set("ns", "x", map[string][]byte{"tls.crt": a.cert, "tls.key": a.key})
	uses("good", a.key, "", 2)
	table.Set("ns", "x", map[string][]byte{"tls.crt": a.cert, "tls.key": a.key, "password": []byte("x")})
	uses("the same", a.key, "", 2)
	table.Set("ns", "x", broken)
	uses("broken later", a.key, "", 2)
	table.Set("ns", "x", map[string][]byte{"tls.crt": b.cert, "tls.key": b.key})
	uses("renewed, but expired", b.key, "", 3)
	table.Set("ns", "x", map[string][]byte{"ca.crt": a.cert})
	uses("only roots", nil, "neither cert and key", 4)
	table.Set("ns", "x", map[string][]byte{"password": []byte("x")})
	uses("not a credential any more", nil, "credential not found", 5)
	table.Delete("ns", "x")
	uses("gone", nil, "credential not found", 5)
	if n := strings.Count(log.String(), "level=WARN"); n != 3 {
		t.Errorf("%d warnings, want 3:\n%s", n, log.String())
	}
	table.Set("ns", "x", map[string][]byte{"ca.crt": a.cert})
	for _, name := range []string{"x", "x-cacert"} {
		if roots, err := RootsOf(table, Reference{SchemeKubernetes, "ns", name}); err != nil || !bytes.Equal(roots.PEM, a.cert) {
			t.Errorf("RootsOf(%s): wrong roots or error %v", name, err)
		}
	}
	table.Set("ns", "x-cacert", map[string][]byte{"ca.crt": b.cert})
	if roots, err := RootsOf(table, Reference{SchemeKubernetes, "ns", "x-cacert"}); err != nil || !bytes.Equal(roots.PEM, b.cert) {
		t.Errorf("the Secret with the suffix does not take precedence: error %v", err)
	}
	if _, err := RootsOf(table, Reference{SchemeKubernetes, "ns", "y-cacert"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("RootsOf(y-cacert): got error %v, want ErrNotFound", err)
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("kubernetes://a/b")
	f.Add("kubernetes-gateway://a/b-cacert")
	f.Fuzz(func(t *testing.T, name string) {
		r, err := ParseReference(name, "ns")
		if err == nil && (!isName(r.Namespace) || !isName(r.Name) || r.Scheme != SchemeKubernetes && r.Scheme != SchemeGateway) {
			t.Fatalf("ParseReference(%q) = %+v", name, r)
		}
	})
}

func FuzzParse(f *testing.F) {
	a := certificate(f, time.Hour)
	f.Add(a.cert, a.key, a.cert, a.crl(f))
	f.Add([]byte("x"), []byte("-----BEGIN PRIVATE KEY-----"), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, cert, key, root, crl []byte) {
		c, err := Parse("ns", "x", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": root, "ca.crl": crl})
		if err == nil && c.Pair == nil && c.Roots == nil {
			t.Fatal("a credential without a pair and roots was accepted")
		}
	})
}
