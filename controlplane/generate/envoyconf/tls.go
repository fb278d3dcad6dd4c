// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// The ALPN names by which Istio's inbound listeners distinguish mutual TLS of the mesh from TLS of
// the application. "istio-peer-exchange" is omitted because it announces a metadata exchange that
// a stock Envoy does not support.
const (
	ALPNMesh      = "istio"
	ALPNMeshHTTP1 = "istio-http/1.1"
	ALPNMeshHTTP2 = "istio-h2"
)

// MeshALPN returns all ALPN names that announce mutual TLS of the mesh.
func MeshALPN() []string {
	return []string{ALPNMesh, "istio-peer-exchange", "istio-http/1.0", ALPNMeshHTTP1, ALPNMeshHTTP2}
}

// inboundCiphers returns the TLS 1.2 ciphers that workloads accept.
func inboundCiphers() []string {
	return []string{
		"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		"AES256-GCM-SHA384", "AES128-GCM-SHA256",
	}
}

// trustDomain returns the trust domain of the mesh.
func trustDomain(mesh *meshv1alpha1.MeshConfig) string {
	if td := mesh.GetTrustDomain(); td != "" {
		return td
	}
	return "cluster.local"
}

// TrustDomains returns the trust domain of the mesh and its aliases.
func TrustDomains(mesh *meshv1alpha1.MeshConfig) []string {
	all := append([]string{trustDomain(mesh)}, mesh.GetTrustDomainAliases()...)
	slices.Sort(all[1:])
	return slices.Compact(all)
}

// Identities returns the names that the certificates of a service may contain, sorted. An empty
// result means that the names are unknown.
func Identities(mesh *meshv1alpha1.MeshConfig, svc *model.Service, accounts *snapshot.AccountSet) []string {
	names := slices.Clone(svc.SubjectAltNames)
	if accounts != nil {
		for _, td := range TrustDomains(mesh) {
			for _, a := range accounts.List {
				names = append(names, "spiffe://"+td+"/ns/"+a.Namespace+"/sa/"+a.ServiceAccount)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// SubjectAltNames returns matchers of certificates that contain one of the names: URIs, email
// addresses, IP addresses or host names.
func SubjectAltNames(names []string) []*tlsv3.SubjectAltNameMatcher {
	matchers := make([]*tlsv3.SubjectAltNameMatcher, 0, len(names))
	for _, name := range names {
		kind := tlsv3.SubjectAltNameMatcher_DNS
		switch {
		case strings.Contains(name, "://"):
			kind = tlsv3.SubjectAltNameMatcher_URI
		case strings.Contains(name, "@"):
			kind = tlsv3.SubjectAltNameMatcher_EMAIL
		case IsIP(name):
			kind = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
		}
		matchers = append(matchers, &tlsv3.SubjectAltNameMatcher{SanType: kind, Matcher: Exactly(name)})
	}
	return matchers
}

// UpstreamTLS returns the transport socket of mutual TLS to a service.
func UpstreamTLS(params *tlsv3.TlsParameters, sni string, names []string, alpn []string) *corev3.TransportSocket {
	return TLSSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: commonTLS(params, SubjectAltNames(names), alpn), Sni: sni})
}

// TLSSocket returns the transport socket of a TLS client.
func TLSSocket(ctx *tlsv3.UpstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: Pack(ctx)},
	}
}

// DownstreamTLS returns the transport socket of inbound mutual TLS. It requires a certificate of
// one of the trust domains of the mesh.
func DownstreamTLS(mesh *meshv1alpha1.MeshConfig, policy tlspolicy.Policy, alpn []string) *corev3.TransportSocket {
	var matchers []*tlsv3.SubjectAltNameMatcher
	for _, td := range TrustDomains(mesh) {
		matchers = append(matchers, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + td + "/"}},
		})
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: Pack(&tlsv3.DownstreamTlsContext{
			CommonTlsContext:         commonTLS(MeshParameters(mesh, policy, inboundCiphers()), matchers, alpn),
			RequireClientCertificate: wrapperspb.Bool(true),
		})},
	}
}

// MeshParameters returns the protocol versions and ciphers of mutual TLS. No ciphers are Envoy's.
func MeshParameters(mesh *meshv1alpha1.MeshConfig, policy tlspolicy.Policy, ciphers []string) *tlsv3.TlsParameters {
	params := &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		CipherSuites:              ciphers,
	}
	if mesh.GetMeshMTLS().GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		params.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	return Restrict(params, policy)
}

// Restrict applies a policy to parameters, and returns them. It comes last: whatever set them before
// does not widen the policy.
func Restrict(params *tlsv3.TlsParameters, policy tlspolicy.Policy) *tlsv3.TlsParameters {
	set, restricted := policy.Envoy(params.GetCipherSuites())
	if !restricted {
		return params
	}
	version := func(name string) tlsv3.TlsParameters_TlsProtocol {
		return tlsv3.TlsParameters_TlsProtocol(tlsv3.TlsParameters_TlsProtocol_value[name])
	}
	params.TlsMinimumProtocolVersion, params.TlsMaximumProtocolVersion = version(set.Oldest), version(set.Newest)
	params.CipherSuites, params.EcdhCurves = set.Ciphers, set.Curves
	if set.Compliance != "" {
		params.CompliancePolicies = []tlsv3.TlsParameters_CompliancePolicy{
			tlsv3.TlsParameters_CompliancePolicy(tlsv3.TlsParameters_CompliancePolicy_value[set.Compliance]),
		}
	}
	return params
}

// commonTLS returns the settings that both sides of mutual TLS share, with keys and roots from the
// agent.
func commonTLS(params *tlsv3.TlsParameters, sans []*tlsv3.SubjectAltNameMatcher, alpn []string) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      params,
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{AgentSecret(SecretIdentity)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: sans},
				ValidationContextSdsSecretConfig: AgentSecret(SecretRoots),
			},
		},
		AlpnProtocols: alpn,
	}
}

// ControlSecret returns the configuration that requests a secret from the control plane, on the
// stream of the resource that names it. Envoy waits for a missing secret only for a limited time,
// because other resources would wait, too.
func ControlSecret(name string) *tlsv3.SdsSecretConfig {
	return boundedWait(&tlsv3.SdsSecretConfig{Name: name, SdsConfig: OverADS()})
}

// AgentSecret returns the configuration that requests a secret from the agent. Envoy waits for it
// without a timeout.
func AgentSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType:                   corev3.ApiConfigSource_GRPC,
				TransportApiVersion:       corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{{
					TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: sdsCluster}},
				}},
			}},
			ResourceApiVersion:  corev3.ApiVersion_V3,
			InitialFetchTimeout: durationpb.New(0),
		},
	}
}

// Exactly returns a matcher of one value.
func Exactly(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}
