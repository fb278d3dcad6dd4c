// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package jwks

import (
	"crypto/sha256"
	"encoding/hex"
)

// Keys are the keys of one source.
type Keys struct {
	// List is the JSON of each public key. It is empty if no keys are known.
	List []string
	// Version differs between different lists.
	Version string
	// Problem is a sentence about why the keys cannot be fetched; empty if there is nothing to
	// report.
	Problem string
}

func newKeys(set *Set) *Keys {
	k := &Keys{List: set.signing()}
	h := sha256.New()
	for _, key := range k.List {
		_, _ = h.Write([]byte(key + "\n")) // writing to a hash never fails
	}
	k.Version = hex.EncodeToString(h.Sum(nil)[:16])
	return k
}

// Sets are the keys of all sources. They are immutable; a nil Sets is empty.
type Sets struct{ of map[Source]Keys }

// NewSets returns the given keys, which must not be modified.
func NewSets(of map[Source]Keys) *Sets { return &Sets{of} }

// Of returns the keys of a source.
func (s *Sets) Of(source Source) Keys {
	if s == nil {
		return Keys{}
	}
	return s.of[source]
}

// RuleSource returns the source of a rule: its URL or, without one, its issuer. It returns an error
// if the issuer does not tell where its keys are, or if the URL must not be requested.
func RuleSource(address, issuer string) (Source, error) {
	source := Source{URL: address}
	if address == "" {
		source.Issuer = issuer
	}
	_, err := newFetcher(FetchConfig{AnyHost: true}, source)
	return source, err
}

// host returns the host and port that are requested first.
func (s Source) host() string {
	u, err := s.start()
	if err != nil {
		return ""
	}
	return HostPort(u)
}
