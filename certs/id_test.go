// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/certs"
)

func TestParseID(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, wantErr string }{
		{"plain", "spiffe://cluster.local/ns/default/sa/web", ""},
		{"capitals in the path", "spiffe://td_1/ns/A/sa/b.C-d", ""},
		{"other scheme", "https://cluster.local/ns/default/sa/web", "does not start"},
		{"empty", "", "does not start"},
		{"no trust domain", "spiffe:///ns/default/sa/web", "trust domain is empty"},
		{"no namespace", "spiffe://td/ns//sa/web", "namespace is empty"},
		{"no service account", "spiffe://td/ns/default/sa/", "service account is empty"},
		{"capitals in the trust domain", "spiffe://TD/ns/default/sa/web", "trust domain"},
		{"port", "spiffe://td:80/ns/default/sa/web", "':'"},
		{"user", "spiffe://u@td/ns/default/sa/web", "'@'"},
		{"query", "spiffe://td/ns/default/sa/web?x", "'?'"},
		{"fragment", "spiffe://td/ns/default/sa/web#x", "'#'"},
		{"per cent", "spiffe://td/ns/de%2Ffault/sa/web", "'%'"},
		{"dots", "spiffe://td/ns/../sa/web", "not allowed"},
		{"slash at the end", "spiffe://td/ns/default/sa/web/", "form"},
		{"other path", "spiffe://td/workload/web", "form"},
		{"not ASCII", "spiffe://td/ns/dé/sa/web", "namespace"},
		{"long trust domain", "spiffe://" + strings.Repeat("a", 256) + "/ns/x/sa/y", "at most 255"},
		{"long", "spiffe://td/ns/" + strings.Repeat("a", 2048) + "/sa/y", "at most 2048"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			id, err := certs.ParseID(tc.in)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got %v, error %v; want an error with %q", id, err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if id.String() != tc.in {
				t.Errorf("String() is %q, want %q", id.String(), tc.in)
			}
		})
	}
}

func TestCertificateIDRequiresOneURI(t *testing.T) {
	t.Parallel()
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	good := uri("spiffe://td/ns/a/sa/b")
	for name, tc := range map[string]struct {
		uris []*url.URL
		ok   bool
	}{
		"one":       {[]*url.URL{good}, true},
		"none":      {nil, false},
		"two":       {[]*url.URL{good, good}, false},
		"escaped":   {[]*url.URL{uri("spiffe://td/ns/a%2Fb/sa/b")}, false},
		"not ours":  {[]*url.URL{uri("spiffe://td/a")}, false},
		"with port": {[]*url.URL{uri("spiffe://td:1/ns/a/sa/b")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, err := certs.CertificateID(&x509.Certificate{URIs: tc.uris})
			if (err == nil) != tc.ok {
				t.Fatalf("got %v, error %v; want success: %v", id, err, tc.ok)
			}
			if tc.ok && id != (certs.ID{TrustDomain: "td", Namespace: "a", ServiceAccount: "b"}) {
				t.Errorf("got %+v, want the identity a/b of td", id)
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("spiffe://cluster.local/ns/default/sa/web")
	f.Add("spiffe://td/ns//sa/")
	f.Add("spiffe://td/ns/a/sa/b/c")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := certs.ParseID(s)
		if err != nil {
			return
		}
		if id.String() != s {
			t.Fatalf("ParseID(%q).String() = %q", s, id.String())
		}
		u, err := url.Parse(s)
		if err != nil || u.String() != s {
			t.Fatalf("%q is not a canonical URI: %v, error %v", s, u, err)
		}
	})
}
