// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"bytes"
	"slices"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Trust is the bundle of the mesh: the roots that its proxies trust.
type Trust struct {
	// PEM holds one certificate each, sorted, without duplicates.
	PEM []string

	roots    []byte // what it was made of
	problems []model.Problem
}

// newTrust returns the bundle of some roots; the old one if it holds the same.
func newTrust(old *Trust, roots []byte) *Trust {
	if old != nil && bytes.Equal(old.roots, roots) {
		return old
	}
	t := &Trust{roots: roots}
	if len(roots) == 0 {
		return t
	}
	chain, err := certs.ParseChain(roots)
	if err != nil {
		// A bundle of which a part is missing would take trust away.
		t.problems = []model.Problem{{
			Object: model.Key{Kind: model.MeshConfigKind, Name: "roots"},
			Reason: "the roots of the certificate authority cannot be read, and proxies keep those that they have: " + err.Error(),
		}}
		return t
	}
	for _, c := range chain {
		t.PEM = append(t.PEM, string(certs.EncodeChain(c)))
	}
	slices.Sort(t.PEM)
	t.PEM = slices.Compact(t.PEM)
	if old != nil && slices.Equal(old.PEM, t.PEM) && len(old.problems) == 0 {
		return old // the order does not count
	}
	return t
}
