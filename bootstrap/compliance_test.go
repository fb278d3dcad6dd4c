// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// TestCompliance renders every bootstrap under each policy. Each context of TLS must have the
// parameters of the policy, and the real Envoy must accept those that have one.
func TestCompliance(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	files, err := filepath.Glob("testdata/*/in.json")
	if err != nil {
		t.Fatal(err)
	}
	ciphers := []any{"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"}
	for policy, want := range map[tlspolicy.Policy]object{
		tlspolicy.FIPS1402: {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_2", "cipher_suites": ciphers, "ecdh_curves": []any{"P-256"}},
		tlspolicy.FIPS1403: {
			"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3", "cipher_suites": ciphers, "ecdh_curves": []any{"P-256", "P-384"},
			"compliance_policies": []any{"FIPS_202205"},
		},
		tlspolicy.PQC: {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3", "cipher_suites": ciphers, "ecdh_curves": []any{"X25519MLKEM768"}},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			total := 0
			for _, file := range files {
				in := readInput(t, file)
				in.TLS = policy
				doc, err := Render(in)
				if err != nil {
					t.Fatal(err)
				}
				var tree any
				if err := json.Unmarshal(doc, &tree); err != nil {
					t.Fatal(err)
				}
				found := 0
				eachContext(tree, func(params any) {
					found++
					if diff := cmp.Diff(any(want), params); diff != "" {
						t.Errorf("%s (-want +got):\n%s", file, diff)
					}
				})
				if total += found; found > 0 && envoy != "" {
					path := filepath.Join(t.TempDir(), "envoy.json")
					if err := os.WriteFile(path, doc, 0o600); err != nil {
						t.Fatal(err)
					}
					validate(t, envoy, path)
				}
				only := strings.Contains(string(doc), `"envoy.reloadable_features.google_grpc_disable_tls_13": true`)
				if only != (policy == tlspolicy.FIPS1402) {
					t.Errorf("%s: Google's gRPC is limited to TLS 1.2: %t", file, only)
				}
			}
			if total < 5 {
				t.Errorf("%d contexts found", total)
			}
		})
	}
	if env := Environ(tlspolicy.FIPS1403); len(env) != 1 || !strings.HasPrefix(env[0], "GRPC_SSL_CIPHER_SUITES=ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA") || Environ("") != nil || Environ(tlspolicy.PQC) != nil {
		t.Errorf("the environment is %q", env)
	}
}

// eachContext calls check with the parameters of each context of TLS in a bootstrap.
func eachContext(part any, check func(params any)) {
	switch part := part.(type) {
	case []any:
		for _, e := range part {
			eachContext(e, check)
		}
	case object:
		for name, e := range part {
			if common, ok := e.(object); ok && name == "common_tls_context" {
				check(common["tls_params"])
				continue
			}
			eachContext(e, check)
		}
	}
}
