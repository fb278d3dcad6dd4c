// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// ParseChain parses all certificates of a PEM text, in order. Text between the blocks is allowed.
// It returns an error for a block of another type and for a malformed block, so that nothing is
// silently ignored.
func ParseChain(data []byte) ([]*x509.Certificate, error) {
	begun := bytes.Count(data, []byte("-----BEGIN "))
	var chain []*x509.Certificate
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("PEM block %d is %q, not CERTIFICATE", len(chain)+1, clip.Cut(block.Type, maxText))
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading certificate %d: %w", len(chain)+1, err)
		}
		chain = append(chain, cert)
	}
	if begun == 0 {
		return nil, errors.New("there is no PEM block with a certificate")
	}
	if len(chain) != begun {
		return nil, fmt.Errorf("%d of %d PEM blocks cannot be read", begun-len(chain), begun)
	}
	return chain, nil
}

// EncodeChain returns the certificates as PEM, in order.
func EncodeChain(chain ...*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, c := range chain {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return out.Bytes()
}
