// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto/x509"
	"slices"
)

// End is a certificate of which the end matters to the mesh.
type End struct {
	Certificate *x509.Certificate
	// What is its place: CA certificate, intermediate, root, additional root.
	What string
	// By says who must replace it; empty if the authority does.
	By string
}

// Ends returns the certificates that the authority signs with, from the issuer to the root, and the
// additional roots of the mesh. Earlier roots are left out: they are removed once nothing needs them.
func (a *Authority) Ends() []End {
	st := a.state.Load()
	s, by := st.signer, ""
	switch {
	case s.kind != kindSelfSigned:
		by = "the owner of the files in " + a.cfg.PluginDir
	case a.cfg.Root.Check < 0:
		by = "you: move its files away, and a new root is created at the next start"
	}
	list := []End{{s.cert, "CA certificate", by}}
	add := func(c *x509.Certificate, what, by string) {
		if !slices.ContainsFunc(list, func(e End) bool { return e.Certificate.Equal(c) }) {
			list = append(list, End{c, what, by})
		}
	}
	for _, c := range s.chain {
		add(c, "intermediate CA certificate", by)
	}
	add(s.anchor, "root certificate", by)
	for _, c := range st.bundle {
		if !slices.ContainsFunc(st.trusted, c.Equal) {
			add(c, "additional root certificate "+c.Subject.String(), "its owner: see caCertificates of the mesh config, and files of roots")
		}
	}
	return list
}
