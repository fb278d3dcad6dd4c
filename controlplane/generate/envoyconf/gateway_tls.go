// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// The parts of credential names, as users and proxies write them.
const (
	credentialScheme = "kubernetes://"
	gatewayScheme    = "kubernetes-gateway://"
	builtinScheme    = "builtin://"
	configMapScheme  = "configmap://"
	rootsSuffix      = "-cacert"
)

// serverCiphers are the cipher suites that can be configured in Envoy: those of TLS 1.2 and
// earlier. The suites of TLS 1.3 are fixed.
const serverCiphers = " ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-RSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384" +
	" ECDHE-RSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305" +
	" ECDHE-ECDSA-AES128-SHA ECDHE-RSA-AES128-SHA ECDHE-ECDSA-AES256-SHA ECDHE-RSA-AES256-SHA" +
	" AES128-GCM-SHA256 AES256-GCM-SHA384 AES128-SHA AES256-SHA DES-CBC3-SHA "

// ServerTLS returns the transport socket of a Gateway server that terminates TLS. An error names
// the field to correct.
func ServerTLS(mesh *meshv1alpha1.MeshConfig, policy tlspolicy.Policy, tls *networkingv1alpha3.ServerTLSSettings, alpn []string) (*corev3.TransportSocket, error) {
	params, err := serverParameters(mesh, tls)
	if err != nil {
		return nil, err
	}
	common := &tlsv3.CommonTlsContext{TlsParams: Restrict(params, policy), AlpnProtocols: alpn}
	if err := checkPins(tls); err != nil {
		return nil, err
	}
	certificates, roots, err := serverSecrets(tls)
	if err != nil {
		return nil, err
	}
	common.TlsCertificateSdsSecretConfigs = certificates
	context := &tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: wrapperspb.Bool(false)}
	switch tls.GetMode() {
	case networkingv1alpha3.ServerTLSSettings_MUTUAL, networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL:
		context.RequireClientCertificate = wrapperspb.Bool(true)
		common.ValidationContextType = serverValidation(tls, roots)
	case networkingv1alpha3.ServerTLSSettings_OPTIONAL_MUTUAL:
		common.ValidationContextType = serverValidation(tls, roots)
	case networkingv1alpha3.ServerTLSSettings_SIMPLE:
	case networkingv1alpha3.ServerTLSSettings_PASSTHROUGH, networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		return nil, fmt.Errorf("tls.mode %s does not terminate TLS", tls.GetMode())
	default:
		return nil, fmt.Errorf("tls.mode %d is unknown", tls.GetMode())
	}
	if err := context.Validate(); err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: Pack(context)},
	}, nil
}

// serverValidation returns which client certificates are accepted.
func serverValidation(tls *networkingv1alpha3.ServerTLSSettings, roots *tlsv3.SdsSecretConfig) *tlsv3.CommonTlsContext_CombinedValidationContext {
	rules := &tlsv3.CertificateValidationContext{
		VerifyCertificateSpki:     tls.GetVerifyCertificateSpki(),
		VerifyCertificateHash:     tls.GetVerifyCertificateHash(),
		MatchTypedSubjectAltNames: SubjectAltNames(tls.GetSubjectAltNames()),
	}
	if tls.GetInsecureSkipVerify().GetValue() {
		rules.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	if path := tls.GetCaCrl(); path != "" {
		rules.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
	}
	return &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: rules, ValidationContextSdsSecretConfig: roots,
		},
	}
}

// checkPins returns an error for hashes that Envoy would reject when it receives the roots.
func checkPins(tls *networkingv1alpha3.ServerTLSSettings) error {
	for i, pin := range tls.GetVerifyCertificateSpki() {
		if b, err := base64.StdEncoding.DecodeString(pin); err != nil || len(b) != sha256.Size {
			return fmt.Errorf("tls.verifyCertificateSpki[%d] %q is not a SHA-256 in base64: write 44 characters", i, pin)
		}
	}
	for i, pin := range tls.GetVerifyCertificateHash() {
		b, err := hex.DecodeString(strings.ReplaceAll(pin, ":", ""))
		if colons := strings.Count(pin, ":"); err != nil || len(b) != sha256.Size || colons != 0 && colons != sha256.Size-1 {
			return fmt.Errorf("tls.verifyCertificateHash[%d] %q is not a SHA-256 in hex: write 64 digits, or pairs of them with colons in between", i, pin)
		}
	}
	return nil
}

// serverSecrets returns the sources of a server's certificates and roots. The roots are nil for
// modes without client certificates.
func serverSecrets(tls *networkingv1alpha3.ServerTLSSettings) (certificates []*tlsv3.SdsSecretConfig, roots *tlsv3.SdsSecretConfig, err error) {
	verifies := tls.GetMode() != networkingv1alpha3.ServerTLSSettings_SIMPLE
	if tls.GetMode() == networkingv1alpha3.ServerTLSSettings_ISTIO_MUTUAL {
		return []*tlsv3.SdsSecretConfig{AgentSecret(SecretIdentity)}, AgentSecret(SecretRoots), nil
	}
	names := tls.GetCredentialNames()
	if len(names) == 0 && tls.GetCredentialName() != "" {
		names = []string{tls.GetCredentialName()}
	}
	for _, name := range names {
		c, err := credential(name)
		if err != nil {
			return nil, nil, err
		}
		certificates = append(certificates, c)
	}
	if len(certificates) == 0 {
		if certificates, err = fileCertificates(tls); err != nil {
			return nil, nil, err
		}
	}
	if !verifies {
		return certificates, nil, nil
	}
	switch {
	case strings.HasPrefix(tls.GetCaCertCredentialName(), configMapScheme):
		roots = ControlSecret(tls.GetCaCertCredentialName() + rootsSuffix)
	case tls.GetCaCertCredentialName() != "":
		roots, err = credential(strings.TrimSuffix(tls.GetCaCertCredentialName(), rootsSuffix) + rootsSuffix)
	case len(names) > 0:
		roots, err = credential(names[0] + rootsSuffix)
	case tls.GetCaCertificates() == "":
		err = fmt.Errorf("tls.caCertificates is missing: mode %s needs it, or credentialName", tls.GetMode())
	default:
		roots = boundedWait(AgentSecret("file-root:" + tls.GetCaCertificates()))
	}
	return certificates, roots, err
}

// fileCertificates returns the certificates in pairs of files, which the agent watches.
func fileCertificates(tls *networkingv1alpha3.ServerTLSSettings) ([]*tlsv3.SdsSecretConfig, error) {
	pairs := tls.GetTlsCertificates()
	if len(pairs) == 0 {
		pairs = []*networkingv1alpha3.ServerTLSSettings_TLSCertificate{{ServerCertificate: tls.GetServerCertificate(), PrivateKey: tls.GetPrivateKey()}}
	}
	var out []*tlsv3.SdsSecretConfig
	for _, p := range pairs {
		if p.GetServerCertificate() == "" || p.GetPrivateKey() == "" {
			return nil, errors.New("tls.serverCertificate and tls.privateKey are missing: write both, or credentialName")
		}
		out = append(out, boundedWait(AgentSecret("file-cert:"+p.GetServerCertificate()+"~"+p.GetPrivateKey())))
	}
	return out, nil
}

// credential returns the configuration that requests a gateway credential from the control plane.
// Names without a scheme refer to Secrets in the namespace of the proxy.
func credential(name string) (*tlsv3.SdsSecretConfig, error) {
	scheme, _, ok := strings.Cut(name, "://")
	switch {
	case name == "":
		return nil, errors.New("tls.credentialNames has an empty name: write the name of a Secret")
	case !ok:
		name = credentialScheme + name
	case name == builtinScheme:
		return AgentSecret(SecretIdentity), nil
	case name == builtinScheme+rootsSuffix:
		return AgentSecret(SecretRoots), nil
	case scheme+"://" != credentialScheme && scheme+"://" != gatewayScheme:
		return nil, fmt.Errorf("tls.credentialName %q: the scheme is not supported; write the name of a Secret, %s or %s", name, credentialScheme, gatewayScheme)
	}
	return ControlSecret(name), nil
}

// secretWait limits how long listeners and clusters wait for the secrets of users. Such a secret
// may not exist, and other servers must not wait for it forever; during Envoy's start that
// includes those on other ports. Without the secret, connections are refused.
const secretWait = 5 * time.Second

// boundedWait makes Envoy wait for a secret at most secretWait.
func boundedWait(s *tlsv3.SdsSecretConfig) *tlsv3.SdsSecretConfig {
	s.SdsConfig.InitialFetchTimeout = durationpb.New(secretWait)
	return s
}

// serverParameters returns the protocol versions, ciphers and curves. Values that the server does
// not set come from the mesh, then from Envoy's defaults.
func serverParameters(mesh *meshv1alpha1.MeshConfig, tls *networkingv1alpha3.ServerTLSSettings) (*tlsv3.TlsParameters, error) {
	defaults := mesh.GetTlsDefaults()
	oldest, newest := tlsVersion(tls.GetMinProtocolVersion()), tlsVersion(tls.GetMaxProtocolVersion())
	if oldest == tlsv3.TlsParameters_TLS_AUTO {
		switch defaults.GetMinProtocolVersion() {
		case meshv1alpha1.MeshConfig_TLSConfig_TLSV1_2:
			oldest = tlsv3.TlsParameters_TLSv1_2
		case meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3:
			oldest = tlsv3.TlsParameters_TLSv1_3
		case meshv1alpha1.MeshConfig_TLSConfig_TLS_AUTO:
		}
	}
	// Envoy's TLS_AUTO means at least TLS 1.2 and at most TLS 1.3.
	least := oldest
	if least == tlsv3.TlsParameters_TLS_AUTO {
		least = tlsv3.TlsParameters_TLSv1_2
	}
	if newest != tlsv3.TlsParameters_TLS_AUTO && newest < least {
		return nil, fmt.Errorf("tls.maxProtocolVersion %s is below the minimum version, %s: write both, or raise it", newest, least)
	}
	ciphers := knownCiphers(tls.GetCipherSuites())
	if len(ciphers) == 0 && len(tls.GetCipherSuites()) > 0 {
		return nil, fmt.Errorf("tls.cipherSuites has no known cipher: write any of %s", strings.Join(strings.Fields(serverCiphers), ", "))
	}
	if len(ciphers) == 0 {
		ciphers = knownCiphers(defaults.GetCipherSuites())
	}
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: cmp.Or(oldest, tlsv3.TlsParameters_TLSv1_2), TlsMaximumProtocolVersion: newest,
		CipherSuites: ciphers, EcdhCurves: knownCurves(defaults.GetEcdhCurves()),
	}, nil
}

func tlsVersion(v networkingv1alpha3.ServerTLSSettings_TLSProtocol) tlsv3.TlsParameters_TlsProtocol {
	switch v {
	case networkingv1alpha3.ServerTLSSettings_TLSV1_0:
		return tlsv3.TlsParameters_TLSv1_0
	case networkingv1alpha3.ServerTLSSettings_TLSV1_1:
		return tlsv3.TlsParameters_TLSv1_1
	case networkingv1alpha3.ServerTLSSettings_TLSV1_2:
		return tlsv3.TlsParameters_TLSv1_2
	case networkingv1alpha3.ServerTLSSettings_TLSV1_3:
		return tlsv3.TlsParameters_TLSv1_3
	case networkingv1alpha3.ServerTLSSettings_TLS_AUTO:
	}
	return tlsv3.TlsParameters_TLS_AUTO
}

// knownCiphers removes duplicates and ciphers for which Envoy would reject the listener.
func knownCiphers(names []string) []string {
	return known(names, serverCiphers)
}

func knownCurves(names []string) []string {
	return known(names, " X25519 P-256 P-384 P-521 X25519MLKEM768 ")
}

func known(names []string, all string) []string {
	var out []string
	for _, name := range names {
		if name != "" && strings.Contains(all, " "+name+" ") && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
