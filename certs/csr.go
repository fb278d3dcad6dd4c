// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// maxCSR is the maximum size of a certificate request in bytes. A request with an RSA 8192 key and
// a long identity needs less than half of it.
const maxCSR = 16 << 10

// oidSubjectAltName is the object identifier of the subject alternative name extension.
var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// NewCSR returns a PEM certificate request for the identity, with an empty subject and a critical
// subject alternative name that contains a single URI.
func NewCSR(key crypto.Signer, id ID) ([]byte, error) {
	if err := id.Validate(); err != nil {
		return nil, fmt.Errorf("making certificate request: %w", err)
	}
	// Package x509 would mark the extension of a request as not critical, so it is encoded here.
	// Tag 6 of GeneralName is uniformResourceIdentifier.
	names, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(id.String())}})
	if err != nil {
		return nil, fmt.Errorf("encoding names of the certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		ExtraExtensions: []pkix.Extension{{Id: oidSubjectAltName, Critical: true, Value: names}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("signing certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// ParseCSR parses one PEM certificate request and verifies that it is signed with the private key
// of its public key.
func ParseCSR(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > maxCSR {
		return nil, fmt.Errorf("the certificate request has %d bytes; at most %d are read", len(data), maxCSR)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the certificate request is not PEM")
	}
	if block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("the PEM block is %q, not CERTIFICATE REQUEST", clip.Cut(block.Type, maxText))
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("checking signature of the certificate request: %w", err)
	}
	return csr, nil
}
