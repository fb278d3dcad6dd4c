// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Environ returns the environment of Envoy that restricts the TLS of its clients of the type
// google_grpc, which Envoy's messages cannot.
func Environ(policy tlspolicy.Policy) []string {
	switch policy {
	case tlspolicy.FIPS1402, tlspolicy.FIPS1403:
		params, _ := policy.Envoy(nil)
		return []string{"GRPC_SSL_CIPHER_SUITES=" + strings.Join(params.Ciphers, ":")}
	}
	return nil
}

// restrict applies a policy to all contexts of TLS in a part of a bootstrap.
func restrict(part any, policy tlspolicy.Policy) {
	switch part := part.(type) {
	case []any:
		for _, element := range part {
			restrict(element, policy)
		}
	case object:
		if common, ok := part["common_tls_context"].(object); ok {
			params, restricted := policy.Envoy(nil)
			if !restricted {
				return
			}
			set := object{
				"tls_minimum_protocol_version": params.Oldest, "tls_maximum_protocol_version": params.Newest,
				"cipher_suites": params.Ciphers, "ecdh_curves": params.Curves,
			}
			if params.Compliance != "" {
				set["compliance_policies"] = []any{params.Compliance}
			}
			common["tls_params"] = set
			return
		}
		for _, field := range part {
			restrict(field, policy)
		}
	}
}
