// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// secretType is the type URL of a secret.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// material is the content of one secret: either a certificate, or a validation context
// for the certificates of peers. It is immutable.
type material struct {
	chain, key []byte // a certificate, PEM
	roots, crl []byte // a validation context, PEM; crl may be empty
	// version is a hash of the public part: nothing that is sent in the clear
	// is derived from the key.
	version string
	end     time.Time // earliest expiry of its certificates
}

func newCertificate(chain, key []byte, end time.Time) *material {
	return &material{chain: chain, key: key, version: version(chain), end: end}
}

func newValidation(roots, crl []byte, end time.Time) *material {
	return &material{roots: roots, crl: crl, version: version(roots, crl), end: end}
}

func version(public ...[]byte) string {
	h := sha256.New()
	for _, part := range public {
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// The extensions of Envoy that use private keys.
const (
	providerCryptoMB = "cryptomb"
	providerQAT      = "qat"
)

// KeyProvider is the extension of Envoy that uses private keys.
type KeyProvider struct {
	Name      string        // cryptomb or qat
	PollDelay time.Duration // how long the extension collects or waits; 1 ms or more
	// Fallback lets Envoy use the key itself if the extension is not available.
	Fallback bool
}

func (p *KeyProvider) validate() error {
	if p == nil {
		return nil
	}
	if p.Name != providerCryptoMB && p.Name != providerQAT {
		return fmt.Errorf("private key provider %q is neither cryptomb nor qat", p.Name)
	}
	if p.PollDelay < time.Millisecond {
		return fmt.Errorf("private key provider %s: its poll delay is %s; it must be 1ms or more", p.Name, p.PollDelay)
	}
	return nil
}
