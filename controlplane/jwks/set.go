// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

const (
	// MaxSet is the maximum size of a key set in bytes.
	MaxSet = 1 << 20
	// maxKeys is the maximum number of keys: a token without a key ID is verified with each of
	// them.
	maxKeys = 100
	// minRSA is the minimum size of a trusted RSA key in bits.
	minRSA = 2048
)

// Set is an immutable set of public keys.
type Set struct {
	Sum  [sha256.Size]byte // of its text as published
	Keys []jose.JSONWebKey
}

// Parse parses a JSON Web Key Set. Unusable keys are an error if strict is true; otherwise they are
// ignored, because the set of a third party may contain keys of other kinds. A set without usable
// keys is an error.
func Parse(text []byte, strict bool) (*Set, error) {
	if len(text) > MaxSet {
		return nil, fmt.Errorf("it has more than %d bytes", MaxSet)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it contains %d keys; at most %d are allowed", len(set.Keys), maxKeys)
	}
	out := &Set{Sum: sha256.Sum256(text)}
	for i, raw := range set.Keys {
		key, err := parseKey(raw)
		if err != nil && strict {
			return nil, fmt.Errorf("key %d %w", i+1, err)
		}
		if err == nil {
			out.Keys = append(out.Keys, key)
		}
	}
	if len(out.Keys) == 0 {
		return nil, errors.New("it contains no public key of a known type")
	}
	return out, nil
}

func parseKey(raw []byte) (jose.JSONWebKey, error) {
	var k jose.JSONWebKey
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, fmt.Errorf("cannot be read: %w", err)
	}
	if !k.IsPublic() || !k.Valid() {
		return k, errors.New("is not a public key; include only public keys")
	}
	if pub, ok := k.Key.(*rsa.PublicKey); ok && pub.N.BitLen() < minRSA {
		return k, fmt.Errorf("is an RSA key of %d bits; use %d or more", pub.N.BitLen(), minRSA)
	}
	return k, nil
}

// Has reports whether the set may contain the key with the given ID.
func (s *Set) Has(id string) bool {
	return slices.ContainsFunc(s.Keys, func(k jose.JSONWebKey) bool { return k.KeyID == id })
}

// signing returns the JSON of each key that may verify signatures, without certificates. The result
// is sorted and without duplicates: it does not change with the order of the keys.
func (s *Set) signing() []string {
	var out []string
	for _, k := range s.Keys {
		if k.Use == "enc" {
			continue
		}
		text, err := json.Marshal(jose.JSONWebKey{Key: k.Key, KeyID: k.KeyID, Algorithm: k.Algorithm, Use: k.Use})
		if err == nil {
			out = append(out, string(text))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
