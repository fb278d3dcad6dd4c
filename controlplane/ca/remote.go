// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Object identifiers of the extension for names, and of the attribute of a request that contains
// extensions.
var (
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
)

// RemoteSigner obtains certificates from external signers, identified by name, for example through
// the Kubernetes CertificateSigningRequest API.
type RemoteSigner interface {
	// Sign returns PEM data: the leaf first, then its issuers. The root may be omitted if it was
	// passed to SetRoots. An error that wraps ErrRequest is caused by the request.
	Sign(ctx context.Context, csrPEM []byte, signerName string, ttl time.Duration) (chain [][]byte, err error)
}

// signRemotely has a request signed by an external signer. The signer certifies what the request
// contains, so the request must contain only the identity. The returned certificate must match the
// identity and the key.
func (s *Service) signRemotely(ctx context.Context, csrPEM []byte, id certs.ID, signerName string, ttl time.Duration) (*Issued, error) {
	csr, err := readRequest(csrPEM, id)
	if err != nil {
		return nil, err
	}
	if err := checkPlain(csr, id); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	// Re-encoded, to remove any text around the request.
	plain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr.Raw})
	answer, err := s.cfg.Remote.Sign(ctx, plain, signerName, ttl)
	if err != nil {
		return nil, fmt.Errorf("having a certificate signed by %s: %w", signerName, err)
	}
	issued, err := s.checkAnswer(answer, csr, id)
	if err != nil {
		return nil, fmt.Errorf("the response of signer %s is rejected: %w", signerName, err)
	}
	issued.Signer = signerName
	return issued, nil
}

// checkPlain rejects requests that contain more than the identity. An organization, for example, is
// a group of users in Kubernetes, and a name of a type that we ignore may be a user elsewhere.
func checkPlain(csr *x509.CertificateRequest, id certs.ID) error {
	for _, name := range csr.Subject.Names {
		if text, ok := name.Value.(string); !ok || text != "" {
			return errors.New("a request for another signer must have an empty subject")
		}
	}
	for _, e := range csr.Extensions {
		if !e.Id.Equal(oidSubjectAltName) {
			return fmt.Errorf("a request for another signer must have no extension other than its name, but has %s", e.Id)
		}
	}
	// Tag 6 of GeneralName is uniformResourceIdentifier.
	names, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte(id.String())}})
	if err != nil {
		return err
	}
	if len(csr.Extensions) != 1 || !bytes.Equal(csr.Extensions[0].Value, names) {
		return fmt.Errorf("a request for another signer must name %s and nothing else", id)
	}
	return checkAttributes(csr.RawTBSCertificateRequest)
}

// checkAttributes rejects a request with attributes other than a single list of extensions, which
// is all that the library parses: a signer may parse more.
func checkAttributes(request []byte) error {
	var content struct {
		Version         int
		Subject, Public asn1.RawValue
		Attributes      []struct {
			ID     asn1.ObjectIdentifier
			Values []asn1.RawValue `asn1:"set"`
		} `asn1:"tag:0"`
	}
	if _, err := asn1.Unmarshal(request, &content); err != nil {
		return fmt.Errorf("reading the attributes of the request: %w", err)
	}
	if a := content.Attributes; len(a) != 1 || !a[0].ID.Equal(oidExtensionRequest) || len(a[0].Values) != 1 {
		return errors.New("a request for another signer must have no attribute other than the extension with its name")
	}
	return nil
}

// checkAnswer validates the answer of a signer and converts it to an Issued.
func (s *Service) checkAnswer(answer [][]byte, csr *x509.CertificateRequest, id certs.ID) (*Issued, error) {
	var chain []*x509.Certificate
	for _, text := range answer {
		more, err := certs.ParseChain(text)
		if err != nil {
			return nil, err
		}
		chain = append(chain, more...)
	}
	if len(chain) == 0 {
		return nil, errors.New("it is empty")
	}
	leaf := chain[0]
	if !certs.SamePublicKey(leaf.PublicKey, csr.PublicKey) {
		return nil, errors.New("it is for a key other than that of the request")
	}
	if got, err := certs.CertificateID(leaf); err != nil || got != id {
		return nil, fmt.Errorf("it is not for %s", id)
	}
	if leaf.IsCA {
		return nil, errors.New("it is the certificate of an authority")
	}
	opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	bundle := s.cfg.Authority.state.Load().bundle
	for _, c := range bundle {
		opts.Roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		opts.Intermediates.AddCert(c)
	}
	verified, err := leaf.Verify(opts)
	if err != nil {
		return nil, fmt.Errorf("it does not lead to a root of the mesh (%w): add the signer's root to the roots of the mesh", err)
	}
	above := verified[0][1 : len(verified[0])-1]
	issued := &Issued{Serial: leaf.SerialNumber, NotAfter: leaf.NotAfter}
	issued.Chain = append(issued.Chain, certs.EncodeChain(leaf))
	if len(above) > 0 {
		issued.Chain = append(issued.Chain, certs.EncodeChain(above...))
	}
	issued.Chain = append(issued.Chain, certs.EncodeChain(bundle...))
	return issued, nil
}
