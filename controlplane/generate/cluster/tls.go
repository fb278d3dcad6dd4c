// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// systemRoots are the roots of the machine that the proxy runs on.
const systemRoots = "system"

// Serves reports whether the TLS settings of the policy can be served to a proxy.
// Where they cannot there must be no cluster: plaintext in place of TLS is no
// answer.
func (p Policy) Serves(v Viewer) bool {
	if snapshot.TLSFault(p.TLS) != "" {
		return false
	}
	if !snapshot.OriginatesTLS(p.TLS) {
		return true
	}
	if v.Proxyless {
		return false // gRPC has no files and secrets but those of the mesh
	}
	return p.TLS.GetCredentialName() == "" || v.Router || p.selected
}

// applyTLS decides how connections to the endpoints are secured: as the rule
// says; otherwise mutual TLS with each endpoint that is known to speak it.
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

// autoTLS speaks mutual TLS with each endpoint that is known to do so.
func autoTLS(c *clusterv3.Cluster, src Source, p Policy) {
	if auto := src.Config.GetEnableAutoMtls(); src.Service.External || auto != nil && !auto.GetValue() {
		return
	}
	switch src.Resolution() {
	case model.ResolutionDynamicDNS:
		return // nobody knows who answers
	case model.ResolutionPassthrough:
		if src.Secured { // what Envoy finds by its address alone says nothing of itself
			c.TransportSocket = meshTLS(src, p)
		}
	default:
		c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
			{Name: "tlsMode-istio", Match: TLSModeIstio(), TransportSocket: meshTLS(src, p)},
			{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: envoyconf.Plaintext()},
		}
	}
}

// TLSModeIstio marks endpoints that speak mutual TLS of the mesh.
func TLSModeIstio() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

// meshTLS is mutual TLS with the identities of the mesh.
func meshTLS(src Source, p Policy) *corev3.TransportSocket {
	sni := p.TLS.GetSni()
	if sni == "" {
		sni = envoyconf.ServerName(src.Port.Number, src.Subset, src.Service.Hostname)
	}
	names := p.TLS.GetSubjectAltNames()
	if src.namesAccounts(p) {
		names = envoyconf.Identities(src.Config, src.Service, src.Accounts)
	}
	return envoyconf.UpstreamTLS(src.Config, sni, envoyconf.Accepted(names, src.Denied, src.Config), meshALPN(src, p))
}

// namesAccounts reports whether mutual TLS of the mesh, where a cluster speaks it,
// is with the accounts that the endpoints are known to have.
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
		// Without a name that both sides know, the other side looks at the
		// bytes to find out the protocol.
		return []string{envoyconf.ALPNMesh}
	case p.speaksHTTP2(protocol, src.Config):
		return []string{envoyconf.ALPNMeshHTTP2, envoyconf.ALPNMesh, "h2"}
	default:
		return []string{envoyconf.ALPNMeshHTTP1, envoyconf.ALPNMesh, "http/1.1"}
	}
}

// originate is TLS that the endpoints speak by themselves. Unless the rule says
// insecureSkipVerify, the certificate of an endpoint must come from the roots
// that the rule names, or those of the machine, and carry the expected name.
func originate(src Source, p Policy, http *httpv3.HttpProtocolOptions) *corev3.TransportSocket {
	tls := p.TLS
	ctx := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsParams: envoyconf.DefaultTLS(src.Config)}}
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

// serverNames says which server is asked for, and which names its certificate
// has to carry one of: those of the rule, then those of the service, then the
// server that is asked for. That is the one of the rule; otherwise the host that
// a request names; or the host of the service where only bytes go by. Nil means
// that the host of each request is checked, or that there is nothing to check.
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
