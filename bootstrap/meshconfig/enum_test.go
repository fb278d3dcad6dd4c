// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"strings"
	"testing"
)

func TestUnknownEnumValues(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"controlPlaneAuthPolicy: MTLS":                          `field controlPlaneAuthPolicy is "MTLS", it must be one of NONE, MUTUAL_TLS`,
		"control_plane_auth_policy: mutual_tls":                 `field control_plane_auth_policy is "mutual_tls"`,
		"tracing: {tlsSettings: {mode: MUTAL}}":                 `field tracing.tlsSettings.mode is "MUTAL", it must be one of DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL`,
		"tracing: {openCensusAgent: {context: [B3, W3]}}":       `field tracing.openCensusAgent.context[1] is "W3"`,
		"proxyHeaders: {forwardedClientCert: NEVER}":            `field proxyHeaders.forwardedClientCert is "NEVER"`,
		"controlPlaneAuthPolicy: NONE":                          "",
		"tracing: {openCensusAgent: {context: [B3, GRPC_BIN]}}": "",
		"runtimeValues: {a: MTLS}\nunknown: {mode: MTLS}":       "",
	} {
		_, err := ApplyProxyConfig(DefaultProxyConfig(), doc)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
}
