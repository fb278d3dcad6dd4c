// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshconfig

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

func TestUnknownEnumValues(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"controlPlaneAuthPolicy: MTLS":                          `field controlPlaneAuthPolicy is "MTLS"; it must be one of NONE, MUTUAL_TLS`,
		"control_plane_auth_policy: mutual_tls":                 `field control_plane_auth_policy is "mutual_tls"`,
		"tracing: {tlsSettings: {mode: MUTAL}}":                 `field tracing.tlsSettings.mode is "MUTAL"; it must be one of DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL`,
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

// TestDurations checks that durations may use Go's units, as in Istio, and not only seconds, as in
// the JSON of protobuf.
func TestDurations(t *testing.T) {
	t.Parallel()
	places := map[string]func(*meshv1alpha1.MeshConfig) *durationpb.Duration{
		"connectTimeout: %":       (*meshv1alpha1.MeshConfig).GetConnectTimeout,
		"dns_refresh_rate: %":     (*meshv1alpha1.MeshConfig).GetDnsRefreshRate,
		"tcpKeepalive: {time: %}": func(m *meshv1alpha1.MeshConfig) *durationpb.Duration { return m.GetTcpKeepalive().GetTime() },
		"defaultHttpRetryPolicy: {perTryTimeout: %}": func(m *meshv1alpha1.MeshConfig) *durationpb.Duration {
			return m.GetDefaultHttpRetryPolicy().GetPerTryTimeout()
		},
		"extensionProviders: [{name: a, envoyExtAuthzHttp: {timeout: %}}]": func(m *meshv1alpha1.MeshConfig) *durationpb.Duration {
			for _, p := range m.GetExtensionProviders() {
				if p.GetName() == "a" {
					return p.GetEnvoyExtAuthzHttp().GetTimeout()
				}
			}
			return nil
		},
		"defaultConfig: {terminationDrainDuration: %}": func(m *meshv1alpha1.MeshConfig) *durationpb.Duration {
			return m.GetDefaultConfig().GetTerminationDrainDuration()
		},
		"default_config: {privateKeyProvider: {qat: {poll_delay: %}}}": func(m *meshv1alpha1.MeshConfig) *durationpb.Duration {
			return m.GetDefaultConfig().GetPrivateKeyProvider().GetQat().GetPollDelay()
		},
	}
	for place, field := range places {
		for text, want := range map[string]time.Duration{
			"1m": time.Minute, "1h": time.Hour, "1m30s": 90 * time.Second, "1500ms": 1500 * time.Millisecond, "0.25s": 250 * time.Millisecond,
			"5s": 5 * time.Second, "1.000000001s": time.Second + 1, "10us": 10 * time.Microsecond, `"0"`: 0,
		} {
			doc := strings.Replace(place, "%", text, 1)
			mesh := Default()
			if err := apply(mesh, []byte(doc)); err != nil { // without the limits of some fields
				t.Errorf("%s: %v", doc, err)
			} else if got := field(mesh); got == nil || got.AsDuration() != want {
				t.Errorf("%s: %v, want %s", doc, got, want)
			}
		}
		path := strings.NewReplacer(": [{name: a, ", "[0].", ": {", ".", ": %", "", "}", "", "]", "", "default_config", "defaultConfig").Replace(place)
		for text, shown := range map[string]string{
			"45": "45", "1x": `"1x"`, "''": `""`, "5 s": `"5 s"`, "{seconds: 5}": `{"seconds":5}`, "true": "true", "9999999h": `"9999999h"`,
		} {
			doc := strings.Replace(place, "%", text, 1)
			_, err := Parse([]byte(doc))
			if want := "field " + path + " is " + shown + "; it must be a duration with its unit, such as 5s, 1m30s or 500ms"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", doc, err, want)
			}
		}
	}
	if _, err := Parse([]byte("connectTimeout: null\ndefaultConfig: {drainDuration: null}")); err != nil {
		t.Error(err)
	}
}
