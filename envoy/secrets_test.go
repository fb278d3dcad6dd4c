// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
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
		if diff := gocmp.Diff(want, got); diff != "" {
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

// TestAdminFiles reads the files of dumps as Envoy writes them.
func TestAdminFiles(t *testing.T) {
	t.Parallel()
	const sockets = "last_updated,cluster.transport_socket,cluster.transport_socket_matches"
	dumps := map[string]string{
		"static_clusters": `{"configs": [{"cluster": {"transport_socket": {"typed_config": {"common_tls_context": {"validation_context": {"trusted_ca": {"filename": "/ca"}, "crl": {"filename": "/crl"}}}}}}, "last_updated": "2026-01-02T03:04:05.006Z"}]}`,
		"dynamic_active_clusters": `{"configs": [{"cluster": {"transport_socket_matches": [{"transport_socket": {"typed_config": {"common_tls_context": {
			"tls_certificates": [{"certificate_chain": {"filename": "/chain"}, "private_key": {"filename": "/key"}}]}}}}]}, "last_updated": "x"}, {"cluster": {}}]}`,
		"static_listeners": "{}",
		"dynamic_listeners": `{"configs": [{"name": "a", "active_state": {"listener": {"filter_chains": [{"transport_socket": {"typed_config": {"common_tls_context": {"combined_validation_context":
			{"default_validation_context": {"crl": {"filename": "/crl"}}, "validation_context_sds_secret_config": {"name": "kubernetes://a-cacert"}}}}}}]}, "last_updated": "2026-01-02T03:04:06Z"},
			"error_state": {"failed_configuration": {"crl": {"filename": "/refused"}}}, "draining_state": {"listener": {"crl": {"filename": "/old"}}}}]}`,
	}
	admin := fakeAdmin(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if clusters := strings.HasSuffix(q.Get("resource"), "clusters"); clusters != (q.Get("mask") == sockets) {
			t.Errorf("asked for %s", r.URL)
		}
		_, _ = w.Write([]byte(dumps[q.Get("resource")]))
	})
	var got []File
	if err := admin.Files(t.Context(), func(f File) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	want := []File{{FileRoots, "/ca", at, ""}, {FileChain, "/chain", time.Time{}, ""}, {FileCRL, "/crl", at, ""}, {FileCRL, "/crl", at.Add(994 * time.Millisecond), "kubernetes://a-cacert"}}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzReadDump(f *testing.F) {
	f.Add(secretsText)
	f.Add(`{"configs": [{"crl": {"filename": "/crl"}, "last_updated": 1}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		n := 0
		err := readDump(strings.NewReader(body), func(raw json.RawMessage) error {
			_ = readSecret(raw, func(Secret) { n++ }) // it may be no secret
			return readFiles(raw, func(File) { n++ })
		})
		if n > len(body) {
			t.Errorf("%d secrets and files in %d bytes, error %v", n, len(body), err)
		}
	})
}
