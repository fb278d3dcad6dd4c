// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// systemRoots stands for the root certificates of the machine that the proxy runs on.
const systemRoots = "system"

// Serves reports whether a proxy can apply the TLS settings of the policy. If it cannot, the
// cluster must be omitted: TLS must not be replaced by plaintext.
func (p Policy) Serves(v Viewer) bool {
	if snapshot.TLSFault(p.TLS) != "" {
		return false
	}
	if !snapshot.OriginatesTLS(p.TLS) {
		return true
	}
	if v.Proxyless {
		return false // gRPC supports neither files nor secrets other than those of the mesh
	}
	return p.TLS.GetCredentialName() == "" || v.Router || p.selected || strings.HasPrefix(p.TLS.GetCredentialName(), snapshot.ConfigMapScheme)
}

// applyTLS sets how connections to the endpoints are secured: as the rule requires, otherwise with
// mutual TLS for each endpoint that is known to support it.
func applyTLS(c *clusterv3.Cluster, src Source, p Policy, http *httpv3.HttpProtocolOptions) {
	if p.TLS == nil {
		autoTLS(c, src, p)
		return
	}
	switch p.TLS.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		c.TransportSocket = meshTLS(src, p)
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		c.TransportSocket = originate(src, p, http)
	case networkingv1alpha3.ClientTLSSettings_DISABLE:
	}
}

// autoTLS uses mutual TLS with each endpoint that is known to support it.
func autoTLS(c *clusterv3.Cluster, src Source, p Policy) {
	if auto := src.Config.GetEnableAutoMtls(); src.Service.External || auto != nil && !auto.GetValue() {
		return
	}
	switch src.Resolution() {
	case model.ResolutionDynamicDNS:
		return // the server is unknown
	case model.ResolutionPassthrough:
		if src.Secured { // endpoints at an original destination carry no metadata
			c.TransportSocket = meshTLS(src, p)
		}
	default:
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
			{Name: "tlsMode-istio", Match: TLSModeIstio(), TransportSocket: meshTLS(src, p)},
			{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: plaintext()},
		}
	}
}

// TLSModeIstio returns the metadata of endpoints that support mutual TLS of the mesh.
func TLSModeIstio() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

// meshTLS returns the transport socket of mutual TLS with the identities of the mesh.
func meshTLS(src Source, p Policy) *corev3.TransportSocket {
	sni := p.TLS.GetSni()
	if sni == "" {
		sni = envoyconf.ServerName(src.Port.Number, src.Subset, src.Service.Hostname)
	}
	names := p.TLS.GetSubjectAltNames()
	if src.namesAccounts(p) {
		names = envoyconf.Identities(src.Config, src.Service, src.Accounts)
	}
	return envoyconf.UpstreamTLS(envoyconf.MeshParameters(src.Config, src.Compliance, nil), sni, envoyconf.Accepted(names, src.Denied, src.Config), meshALPN(src, p))
}

// namesAccounts reports whether mutual TLS of the mesh, if a cluster uses it, verifies the service
// accounts of the endpoints.
func (src Source) namesAccounts(p Policy) bool {
	if p.TLS == nil {
		return !src.Service.External
	}
	return p.TLS.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL && len(p.TLS.GetSubjectAltNames()) == 0
}

func meshALPN(src Source, p Policy) []string {
	protocol := src.Port.Protocol
	switch {
	case !protocol.IsHTTP() || p.asClient(protocol):
		// Without an ALPN name that both sides know, the server detects the protocol from the
		// first bytes.
		return []string{envoyconf.ALPNMesh}
	case p.speaksHTTP2(protocol, src.Config):
		return []string{envoyconf.ALPNMeshHTTP2, envoyconf.ALPNMesh, "h2"}
	default:
		return []string{envoyconf.ALPNMeshHTTP1, envoyconf.ALPNMesh, "http/1.1"}
	}
}

// originate returns the transport socket of TLS that is not that of the mesh. Unless the rule sets
// insecureSkipVerify, the certificate of an endpoint must be signed by the roots of the rule or of
// the machine, and contain the expected name.
func originate(src Source, p Policy, http *httpv3.HttpProtocolOptions) *corev3.TransportSocket {
	tls := p.TLS
	ctx := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: envoyconf.Restrict(defaultTLS(src.Config), src.Compliance)}}
	if p.speaksHTTP2(src.Port.Protocol, src.Config) {
		ctx.CommonTlsContext.AlpnProtocols = []string{"h2"}
	}
	credential := tls.GetCredentialName()
	if credential != "" && !strings.Contains(credential, "://") {
		credential = "kubernetes://" + credential
	}
	if tls.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL {
		own := envoyconf.AgentSecret("file-cert:" + tls.GetClientCertificate() + "~" + tls.GetPrivateKey())
		if credential != "" {
			own = envoyconf.ControlSecret(credential)
		}
		ctx.CommonTlsContext.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{own}
	}
	names := serverNames(src, p, ctx, http)
	if tls.GetInsecureSkipVerify().GetValue() {
		return envoyconf.TLSSocket(ctx)
	}
	roots := systemRoots
	if file := tls.GetCaCertificates(); file != "" {
		roots = file
	}
	validation := &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
		DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: envoyconf.SubjectAltNames(names)},
		ValidationContextSdsSecretConfig: envoyconf.AgentSecret("file-root:" + roots),
	}
	if credential != "" {
		validation.ValidationContextSdsSecretConfig = envoyconf.ControlSecret(credential + "-cacert")
	} else if crl := tls.GetCaCrl(); crl != "" {
		validation.DefaultValidationContext.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: crl}}
	}
	ctx.CommonTlsContext.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: validation}
	return envoyconf.TLSSocket(ctx)
}

// serverNames sets the SNI in ctx and returns the names of which the certificate must contain one:
// those of the rule, otherwise those of the service, otherwise the SNI. The SNI is that of the
// rule; otherwise the host of each HTTP request, or the host of the service for other protocols.
// Nil means that the host of each request is verified, or that no name is.
func serverNames(src Source, p Policy, ctx *tlsv3.UpstreamTlsContext, http *httpv3.HttpProtocolOptions) []string {
	names := p.TLS.GetSubjectAltNames()
	if len(names) == 0 {
		names = src.Service.SubjectAltNames
	}
	ctx.Sni = p.TLS.GetSni()
	wildcard := strings.Contains(src.Service.Hostname, "*")
	requests := src.Port.Protocol.IsHTTP() || http != nil && wildcard
	if ctx.GetSni() == "" && requests && http != nil {
		http.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{
			AutoSni: true, AutoSanValidation: len(names) == 0 && !p.TLS.GetInsecureSkipVerify().GetValue(),
		}
		return names
	}
	if ctx.GetSni() == "" && !wildcard {
		ctx.Sni = src.Service.Hostname
	}
	if len(names) == 0 && ctx.GetSni() != "" {
		names = []string{ctx.GetSni()}
	}
	return names
}

// defaultTLS returns the mesh settings for TLS other than that of the mesh (tlsDefaults).
func defaultTLS(mesh *meshv1alpha1.MeshConfig) *tlsv3.TlsParameters {
	set := mesh.GetTlsDefaults()
	params := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites:              set.GetCipherSuites(),
		EcdhCurves:                set.GetEcdhCurves(),
	}
	if set.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		params.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return params
}

// plaintext returns the transport socket without TLS.
func plaintext() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.raw_buffer",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: envoyconf.Pack(&rawbufferv3.RawBuffer{})},
	}
}
