// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/outrigger-mesh/outrigger/controlplane/credentials"
)

// KeyPair gives the SDS resource of a certificate with its key. Its bytes hold
// the key: they go to the proxy, and nowhere else.
func KeyPair(name string, pair *credentials.KeyPair) (*Resource, error) {
	cert := &tlsv3.TlsCertificate{CertificateChain: inline(pair.Chain), PrivateKey: inline(pair.Key)}
	if len(pair.OCSPStaple) > 0 {
		cert.OcspStaple = inline(pair.OCSPStaple)
	}
	return marshal(TypeSecret, name, &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: cert}})
}

// Roots gives the SDS resource of what peers are verified with.
func Roots(name string, roots *credentials.Roots) (*Resource, error) {
	context := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots.PEM)}
	if len(roots.CRL) > 0 {
		context.Crl = inline(roots.CRL)
	}
	return marshal(TypeSecret, name, &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: context}})
}

// SetOf makes a set of resources that were not made by [Generator.Generate];
// prev, which may be nil, if that is the same.
func SetOf(prev *Set, resources []*Resource) *Set { return newSet(prev, resources, nil) }

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}
