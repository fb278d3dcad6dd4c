// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// maxCRL is the maximum size of a file of revocation lists in bytes, about 100,000 entries.
const maxCRL = 4 << 20

// revocations are validated revocation lists. They are immutable; nil means that there are none.
type revocations struct {
	text    []byte
	revoked map[string]bool // by issuer and serial number
}

// pem returns the lists in their original encoding.
func (r *revocations) pem() []byte {
	if r == nil {
		return nil
	}
	return r.text
}

// readCRL parses PEM revocation lists. Each must be signed by one of the given issuers.
func readCRL(text []byte, issuers []*x509.Certificate) (*revocations, error) {
	if len(text) > maxCRL {
		return nil, fmt.Errorf("%s has %d bytes; at most %d are read", crlFile, len(text), maxCRL)
	}
	r := &revocations{text: text, revoked: map[string]bool{}}
	begun := bytes.Count(text, []byte("-----BEGIN "))
	for n := 1; ; n++ {
		block, rest := pem.Decode(text)
		if block == nil {
			switch {
			case n == 1:
				return nil, errors.New(crlFile + " contains no complete PEM block: write X509 CRL blocks, or remove the file")
			case n-1 != begun:
				return nil, fmt.Errorf("%d of %d PEM blocks of %s cannot be read: replace it", begun-n+1, begun, crlFile)
			}
			return r, nil
		}
		text = rest
		if block.Type != "X509 CRL" {
			return nil, fmt.Errorf("block %d of %s is not of the type X509 CRL: remove it", n, crlFile)
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("block %d of %s cannot be read (%w): replace it", n, crlFile, err)
		}
		if !signedByAny(list, issuers) {
			return nil, fmt.Errorf("block %d of %s is not signed by an authority of this mesh: replace it by a list of the root or of an intermediate", n, crlFile)
		}
		for _, e := range list.RevokedCertificateEntries {
			r.revoked[string(list.RawIssuer)+"\x00"+string(e.SerialNumber.Bytes())] = true
		}
	}
}

func signedByAny(list *x509.RevocationList, issuers []*x509.Certificate) bool {
	for _, c := range issuers {
		if list.CheckSignatureFrom(c) == nil {
			return true
		}
	}
	return false
}

// good reports whether at least one of the chains has no revoked certificate.
func (r *revocations) good(chains [][]*x509.Certificate) bool {
	if r == nil || len(r.revoked) == 0 || len(chains) == 0 {
		return true
	}
	for _, chain := range chains {
		revoked := false
		for _, c := range chain {
			revoked = revoked || r.revoked[string(c.RawIssuer)+"\x00"+string(c.SerialNumber.Bytes())]
		}
		if !revoked {
			return true
		}
	}
	return false
}
