// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs

import (
	"crypto/x509"
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Limits of the SPIFFE identity standard, in bytes.
const (
	maxTrustDomain = 255
	maxURI         = 2048
)

// scheme is the prefix of each identity.
const scheme = "spiffe://"

// ID is the identity of a workload.
type ID struct {
	TrustDomain    string // for example cluster.local
	Namespace      string
	ServiceAccount string
}

// String returns the identity as a SPIFFE URI: spiffe://td/ns/x/sa/y.
func (id ID) String() string {
	return scheme + id.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

// Validate returns an error unless the identity has all its parts and each of them is valid in a
// SPIFFE URI.
func (id ID) Validate() error {
	if err := ValidateTrustDomain(id.TrustDomain); err != nil {
		return err
	}
	if err := validateSegment("namespace", id.Namespace); err != nil {
		return err
	}
	if err := validateSegment("service account", id.ServiceAccount); err != nil {
		return err
	}
	if n := len(id.String()); n > maxURI {
		return fmt.Errorf("the identity is %d bytes long; a SPIFFE URI has at most %d", n, maxURI)
	}
	return nil
}

// ValidateTrustDomain returns an error unless td has 1 to 255 lower-case letters, digits, dots,
// dashes and underscores.
func ValidateTrustDomain(td string) error {
	if td == "" {
		return fmt.Errorf("the trust domain is empty")
	}
	if len(td) > maxTrustDomain {
		return fmt.Errorf("the trust domain is %d bytes long; it may have at most %d", len(td), maxTrustDomain)
	}
	for _, c := range []byte(td) {
		if !isLower(c) && !isPlain(c) {
			return fmt.Errorf("trust domain %q contains %q; only a-z, 0-9, '.', '-' and '_' are allowed", td, c)
		}
	}
	return nil
}

func validateSegment(what, s string) error {
	switch s {
	case "":
		return fmt.Errorf("the %s is empty", what)
	case ".", "..":
		return fmt.Errorf("the %s is %q, which is not allowed in a SPIFFE URI", what, s)
	}
	for _, c := range []byte(s) {
		if !isLower(c) && !isPlain(c) && (c < 'A' || c > 'Z') {
			return fmt.Errorf("%s %q contains %q; only letters, digits, '.', '-' and '_' are allowed", what, s, c)
		}
	}
	return nil
}

func isLower(c byte) bool { return c >= 'a' && c <= 'z' }

func isPlain(c byte) bool { return c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_' }

// ParseID parses an identity of the form spiffe://td/ns/x/sa/y. It rejects all other forms.
func ParseID(s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, scheme)
	if !ok {
		return ID{}, fmt.Errorf("identity %q does not start with %s", clip.Cut(s, maxText), scheme)
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" {
		return ID{}, fmt.Errorf("identity %q is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>", clip.Cut(s, maxText))
	}
	id := ID{TrustDomain: parts[0], Namespace: parts[2], ServiceAccount: parts[4]}
	if err := id.Validate(); err != nil {
		return ID{}, fmt.Errorf("identity %q: %w", clip.Cut(s, maxText), err)
	}
	return id, nil
}

// CertificateID returns the identity of a certificate. The certificate must have exactly one URI
// among its subject alternative names, as the SPIFFE standard requires.
func CertificateID(cert *x509.Certificate) (ID, error) {
	if n := len(cert.URIs); n != 1 {
		return ID{}, fmt.Errorf("the certificate has %d URI names; a workload certificate has exactly one", n)
	}
	return ParseID(cert.URIs[0].String())
}

// maxText is the maximum number of bytes of a peer's text that an error quotes.
const maxText = 300
