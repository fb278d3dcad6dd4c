// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// KeyType is an algorithm and size of a private key.
type KeyType string

// Supported key types. The empty KeyType means ECDSAP256.
const (
	ECDSAP256 KeyType = "P256"
	ECDSAP384 KeyType = "P384"
	RSA2048   KeyType = "RSA2048"
	RSA3072   KeyType = "RSA3072"
	RSA4096   KeyType = "RSA4096"
)

// Validate returns an error if the key type is not supported.
func (t KeyType) Validate() error {
	switch t {
	case ECDSAP256, ECDSAP384, RSA2048, RSA3072, RSA4096, "":
		return nil
	default:
		return fmt.Errorf("key type %q is not one of P256, P384, RSA2048, RSA3072, RSA4096", string(t))
	}
}

// NewKey creates a private key.
func NewKey(t KeyType) (crypto.Signer, error) {
	switch t {
	case ECDSAP256, "":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	default:
		return nil, t.Validate()
	}
}

// TypeOf returns the type of a key, or "" if the type is not supported.
func TypeOf(key crypto.Signer) KeyType {
	switch k := key.Public().(type) {
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return ECDSAP256
		case elliptic.P384():
			return ECDSAP384
		}
	case *rsa.PublicKey:
		switch k.N.BitLen() {
		case 2048:
			return RSA2048
		case 3072:
			return RSA3072
		case 4096:
			return RSA4096
		}
	}
	return ""
}

// MarshalKey returns the key as PKCS#8 PEM.
func MarshalKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding private key as PKCS#8: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseKey parses an ECDSA or RSA private key from PEM: PKCS#8 ("PRIVATE KEY"), PKCS#1 ("RSA
// PRIVATE KEY") or SEC 1 ("EC PRIVATE KEY"). It skips blocks before the key, such as "EC
// PARAMETERS".
func ParseKey(data []byte) (crypto.Signer, error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, errors.New("there is no PEM block with an unencrypted private key")
		}
		data = rest
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			continue
		}
		if err != nil {
			// The cause is omitted, because it might contain key material.
			return nil, fmt.Errorf("the PEM block %q does not contain a readable private key", block.Type)
		}
		switch k := key.(type) {
		case *ecdsa.PrivateKey:
			return k, nil
		case *rsa.PrivateKey:
			return k, nil
		default:
			return nil, fmt.Errorf("private keys of type %T are not supported; use ECDSA or RSA", key)
		}
	}
}

// SamePublicKey reports whether two public keys are equal.
func SamePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
