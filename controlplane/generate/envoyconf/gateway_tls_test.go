// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

// TestServerTLS checks valid and invalid settings. What Envoy would reject, at once or with the
// certificates, must result in an error that names the field.
func TestServerTLS(t *testing.T) {
	t.Parallel()
	const hash = "df6ff72fe9116521268f6f2dd4966f51df479883fe7037b39f75916ac3049d1a"
	colons := strings.TrimSuffix(strings.Repeat("DF:", 32), ":")
	for _, tc := range []struct{ settings, fault string }{
		{`mode: SIMPLE, credentialName: a`, ""},
		{`mode: PASSTHROUGH`, "tls.serverCertificate and tls.privateKey"},
		{`mode: PASSTHROUGH, credentialName: a`, "tls.mode PASSTHROUGH does not terminate TLS"},
		{`mode: MUTUAL, credentialName: a, verifyCertificateHash: ["` + hash + `", "` + colons + `"]`, ""},
		{`mode: MUTUAL, credentialName: a, verifyCertificateHash: ["` + hash[1:] + `"]`, "tls.verifyCertificateHash[0]"},
		{`mode: MUTUAL, credentialName: a, verifyCertificateHash: ["` + strings.Replace(colons, ":", "", 1) + `"]`, "tls.verifyCertificateHash[0]"},
		{`mode: MUTUAL, credentialName: a, verifyCertificateSpki: ["NvqYIYSbgK2vCJpQhObf77vv+bQWtc5ek5RIOwPiC9A="]`, ""},
		{`mode: MUTUAL, credentialName: a, verifyCertificateSpki: ["NvqYIYSbgK2vCJpQhObf77vv"]`, "tls.verifyCertificateSpki[0]"},
		{`mode: SIMPLE, credentialName: a, maxProtocolVersion: TLSV1_1`, "tls.maxProtocolVersion TLSv1_1 is below"},
		{`mode: SIMPLE, credentialName: a, minProtocolVersion: TLSV1_0, maxProtocolVersion: TLSV1_1, cipherSuites: [AES128-SHA]`, ""},
		{`mode: SIMPLE, credentialName: a, cipherSuites: [none]`, "tls.cipherSuites"},
		{`mode: MUTUAL, serverCertificate: /a, privateKey: /b`, "tls.caCertificates is missing"},
		{`mode: MUTUAL, tlsCertificates: [{serverCertificate: /a, privateKey: /b}], caCertCredentialName: roots`, ""},
		{`mode: SIMPLE, credentialName: "vault://a"`, "the scheme is not supported"},
		{`mode: ISTIO_MUTUAL`, ""},
	} {
		tls := &networkingv1alpha3.ServerTLSSettings{}
		text, err := yaml.YAMLToJSON([]byte("{" + tc.settings + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(text, tls); err != nil {
			t.Fatal(err)
		}
		socket, err := ServerTLS(&meshv1alpha1.MeshConfig{}, "", tls, nil)
		switch {
		case tc.fault == "" && err != nil:
			t.Errorf("%s: %v", tc.settings, err)
		case tc.fault != "" && (err == nil || !strings.Contains(err.Error(), tc.fault)):
			t.Errorf("%s: the error is %v, want %q", tc.settings, err, tc.fault)
		case err == nil:
			context := &tlsv3.DownstreamTlsContext{}
			if err := socket.GetTypedConfig().UnmarshalTo(context); err != nil {
				t.Fatal(err)
			}
			demands := strings.Contains(tc.settings, "MUTUAL")
			if context.GetRequireClientCertificate().GetValue() != demands || (context.GetCommonTlsContext().GetCombinedValidationContext() != nil) != demands {
				t.Errorf("%s: %v", tc.settings, context)
			}
		}
	}
}

// FuzzCredential parses credential names: each is rejected or requests exactly one secret.
func FuzzCredential(f *testing.F) {
	for _, name := range []string{"a", "kubernetes://a", "kubernetes://ns/a", "kubernetes-gateway://ns/a", "builtin://", "builtin://-cacert", "sds://a", "://", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s, err := credential(name)
		if err != nil {
			return
		}
		overADS := s.GetSdsConfig().GetAds() != nil
		if s.GetName() == "" || overADS != strings.Contains(s.GetName(), "://") {
			t.Errorf("the credential %q asks for %v", name, s)
		}
	})
}
