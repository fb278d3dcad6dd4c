// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// The phases of a rotation, as used by the metric.
const (
	phaseSteady = "steady" // one root, which signs
	phaseAdd    = "add"    // the next root is distributed but does not sign yet
	phaseSwitch = "switch" // the next root signs; certificates below the old one are still valid
)

// extraRoots are roots that the authority does not sign with.
type extraRoots []*x509.Certificate

// state is an immutable state of the authority. Signing and handshakes read it without a lock.
type state struct {
	signer   *signer
	next     *signer // distributed, but does not sign yet; nil in other phases
	phase    string
	switchAt time.Time           // when next starts to sign
	trusted  []*x509.Certificate // the authority's own roots
	crl      *revocations

	// Derived from the fields above and the additional roots.
	bundle    []*x509.Certificate
	bundlePEM []byte
	pool      *x509.CertPool
	changed   chan struct{} // closed when another state replaces this one

	// longest is the longest lifetime of a leaf that signer may have signed, in nanoseconds, as far
	// as the store knows. See Authority.track.
	longest atomic.Int64
}

// complete sets the fields derived from the roots.
func (s *state) complete(extra map[string]extraRoots) *state {
	var all []*x509.Certificate
	all = append(all, s.trusted...)
	for _, source := range slices.Sorted(maps.Keys(extra)) {
		all = append(all, extra[source]...)
	}
	s.bundle, s.pool = nil, x509.NewCertPool()
	seen := map[string]bool{}
	for _, c := range all {
		if !seen[string(c.Raw)] {
			seen[string(c.Raw)] = true
			s.bundle = append(s.bundle, c)
			s.pool.AddCert(c)
		}
	}
	s.bundlePEM = certs.EncodeChain(s.bundle...)
	s.changed = make(chan struct{})
	return s
}

// withExtra returns a copy with other additional roots.
func (s *state) withExtra(extra map[string]extraRoots) *state {
	c := &state{signer: s.signer, next: s.next, phase: s.phase, switchAt: s.switchAt, trusted: s.trusted, crl: s.crl}
	c.longest.Store(s.longest.Load())
	return c.complete(extra)
}

// same reports whether two states are equivalent.
func (s *state) same(o *state) bool {
	return o != nil && s.signer.same(o.signer) && s.next.same(o.next) && s.phase == o.phase && s.switchAt.Equal(o.switchAt) &&
		bytes.Equal(s.bundlePEM, o.bundlePEM) && bytes.Equal(s.crl.pem(), o.crl.pem())
}

// publish makes a state the current one and notifies the receivers of Changed. The caller holds mu.
func (a *Authority) publish(next *state) {
	before := a.state.Load()
	if before != nil && before.signer.print == next.signer.print {
		next.longest.Store(max(next.longest.Load(), before.longest.Load()))
	}
	if next.same(before) {
		before.longest.Store(next.longest.Load())
		return
	}
	a.state.Store(next)
	a.metrics.show(next)
	if before != nil {
		close(before.changed)
	}
}
