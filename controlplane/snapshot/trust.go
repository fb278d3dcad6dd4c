// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"bytes"
	"slices"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Trust is the trust bundle of the mesh: the roots that its proxies trust.
type Trust struct {
	// PEM contains one certificate per element, sorted, without duplicates.
	PEM []string

	roots    []byte // the input of newTrust
	problems []model.Problem
}

// newTrust returns the bundle of the roots. It returns old if that contains the same certificates.
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
		// A partial bundle would revoke trust in the missing roots.
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
		return old // only the order differs
	}
	return t
}
