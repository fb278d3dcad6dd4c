// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Names of the secrets that are served.
const (
	NameDefault = "default" // chain and key of the workload
	NameRoots   = "ROOTCA"  // roots of the mesh
)

// secretType is the type URL of a secret.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// served reports whether a secret of this name can ever be answered.
func served(name string) bool { return name == NameDefault || name == NameRoots }

// version returns the version of a secret. It is a hash of its public part:
// nothing that is sent in the clear is derived from the key.
func version(id *Identity, name string) string {
	public := id.RootsPEM
	if name == NameDefault {
		public = id.ChainPEM
	}
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:8])
}

// secret renders the secret of a name that is served.
func secret(id *Identity, name string) (*anypb.Any, error) {
	s := &tlsv3.Secret{Name: name}
	if name == NameDefault {
		s.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(id.ChainPEM),
			PrivateKey:       inline(id.KeyPEM),
		}}
	} else {
		s.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(id.RootsPEM),
		}}
	}
	resource, err := anypb.New(s)
	if err != nil {
		return nil, fmt.Errorf("encoding secret %s: %w", name, err)
	}
	return resource, nil
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
