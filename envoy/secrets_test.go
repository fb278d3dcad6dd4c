// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const secretsText = `{"configs": [
 {"@type": "x", "name": "kubernetes://tls", "secret": {"name": "kubernetes://tls", "tls_certificate": {"certificate_chain": {"inline_bytes": "Y2hhaW4="}, "private_key": {"inline_bytes": "W3JlZGFjdGVkXQ=="}}}},
 {"name": "ROOTCA", "secret": {"validation_context": {"trusted_ca": {"inline_string": "roots"}, "crl": {"inline_bytes": "Y3Js"}}}},
 {"name": "file", "secret": {"tls_certificate": {"certificate_chain": {"filename": "/c"}}}},
 {"name": "token", "secret": {"generic_secret": {"secret": {"inline_string": "x"}}}}]}`

func TestAdminSecrets(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]Secret{
		secretsText: {
			{Name: "kubernetes://tls", Chain: []byte("chain"), Roots: []byte{}, CRL: []byte{}},
			{Name: "ROOTCA", Chain: []byte{}, Roots: []byte("roots"), CRL: []byte("crl")},
			{Name: "file", Chain: []byte{}, Roots: []byte{}, CRL: []byte{}},
			{Name: "token", Chain: []byte{}, Roots: []byte{}, CRL: []byte{}},
		},
		"{}": nil,
	} {
		admin := fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/config_dump" || r.URL.Query().Get("resource") != "dynamic_active_secrets" {
				t.Errorf("asked for %s", r.URL)
			}
			_, _ = w.Write([]byte(body))
		})
		var got []Secret
		if err := admin.Secrets(t.Context(), func(s Secret) { got = append(got, s) }); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	for _, body := range []string{"", "[", "x", secretsText[:200], `{"configs": [{"name": 1}]}`, `{"configs": [1]}`} {
		admin := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		if err := admin.Secrets(t.Context(), func(Secret) {}); err == nil || !strings.Contains(err.Error(), "secrets of envoy's admin port") {
			t.Errorf("%q: got error %v", body, err)
		}
	}
}

func FuzzReadSecrets(f *testing.F) {
	f.Add(secretsText)
	f.Add("{}")
	f.Fuzz(func(t *testing.T, body string) {
		n := 0
		if err := readSecrets(strings.NewReader(body), func(Secret) { n++ }); n > len(body) {
			t.Errorf("%d secrets in %d bytes, error %v", n, len(body), err)
		}
	})
}
