// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package secrets

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// keyPairResource returns the SDS resource of a certificate and its key. Its bytes contain the key
// and must be sent to the proxy only.
func keyPairResource(name string, pair *credentials.KeyPair) (*xds.Resource, error) {
	cert := &tlsv3.TlsCertificate{CertificateChain: inline(pair.Chain), PrivateKey: inline(pair.Key)}
	if len(pair.OCSPStaple) > 0 {
		cert.OcspStaple = inline(pair.OCSPStaple)
	}
	return xds.New(xds.TypeSecret, name, &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: cert}})
}

// rootsResource returns the SDS resource of roots that peers are verified with.
func rootsResource(name string, roots *credentials.Roots) (*xds.Resource, error) {
	context := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots.PEM)}
	if len(roots.CRL) > 0 {
		context.Crl = inline(roots.CRL)
	}
	return xds.New(xds.TypeSecret, name, &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
