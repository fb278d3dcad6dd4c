// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Workload manages one identity: NewWorkload creates one whose certificates an authority
// signs, NewFileWorkload one whose certificates are in files.
type Workload struct {
	log   *slog.Logger
	run   func(context.Context) error
	state atomic.Pointer[state]
	wish  chan struct{} // holds one token, which requests an early renewal

	mu sync.Mutex // guards in, and orders the changes of state
	in inputs
}

// inputs are the inputs of a state, which change independently.
type inputs struct {
	own     *Identity           // chain and key; nil before the first
	roots   []*x509.Certificate // of the authority, or of the root file
	anchors []*x509.Certificate // additional trusted roots
	crl     []byte              // revocation lists, PEM; may be empty
}

// state is an immutable snapshot of the current identity and roots.
type state struct {
	identity *Identity     // nil before the first certificate
	leaf     *material     // secret "default"; nil before the first certificate
	roots    *material     // secret "ROOTCA"; nil before the first roots
	changed  chan struct{} // closed once a later state is in force
}

// start sets the first state, which is empty.
func (w *Workload) start() {
	w.wish = make(chan struct{}, 1)
	w.state.Store(&state{changed: make(chan struct{})})
}

// Current returns the current identity, or nil before the first one. It may have expired
// if no authority could be reached.
func (w *Workload) Current() *Identity { return w.state.Load().identity }

// Changed returns a channel that is closed at the next change of Current or of the roots.
// Call it before Current, so that no change is missed.
func (w *Workload) Changed() <-chan struct{} { return w.state.Load().changed }

// Certificate returns the certificate for TLS connections, or nil if there is none or it
// has expired.
func (w *Workload) Certificate() *tls.Certificate {
	id := w.Current()
	if id == nil || !time.Now().Before(id.NotAfter) {
		return nil
	}
	return id.cert
}

// End returns the time from which peers refuse the current identity because a certificate
// has expired, or zero if there is no identity yet.
func (w *Workload) End() time.Time {
	id := w.Current()
	if id == nil {
		return time.Time{}
	}
	return id.end()
}

// RevocationEnd returns the time by which the revocation list in force should have been
// replaced: Envoy refuses every certificate that it covers then. It is zero if no list
// is in force, or it has no such time.
func (w *Workload) RevocationEnd() time.Time {
	w.mu.Lock()
	crl := w.in.crl
	w.mu.Unlock()
	next, err := NextUpdate(crl)
	if err != nil {
		return time.Time{} // only lists that can be parsed are in force
	}
	return next
}

// Renew requests an early renewal, because a peer refuses the current certificate: its
// authority may have been replaced. It does not block, and has no effect for a workload in
// files. The delay between consecutive early renewals grows, because a peer would refuse
// another certificate of the same authority, too.
func (w *Workload) Renew() {
	select {
	case w.wish <- struct{}{}:
	default: // already requested
	}
}

// Run renews the identity until ctx is done.
func (w *Workload) Run(ctx context.Context) error { return w.run(ctx) }

// update changes the inputs and sets the resulting state. It notifies waiters if the
// state has changed.
func (w *Workload) update(change func(*inputs)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.in.own
	change(&w.in)
	old := w.state.Load()
	next := &state{changed: make(chan struct{}), identity: old.identity, leaf: old.leaf, roots: old.roots}
	if own != w.in.own {
		next.leaf = newCertificate(w.in.own.ChainPEM, w.in.own.KeyPEM, w.in.own.NotAfter)
	}
	roots := union(w.in.roots, w.in.anchors)
	if len(w.in.roots) > 0 { // anchors alone would reject the own authority
		if trust := newValidation(certs.EncodeChain(roots...), w.in.crl, firstEnd(roots)); old.roots == nil || old.roots.version != trust.version {
			next.roots = trust
		}
	}
	if next.leaf == old.leaf && next.roots == old.roots {
		return
	}
	if w.in.own != nil {
		identity := *w.in.own
		if next.roots != nil {
			identity.roots, identity.RootsPEM = roots, next.roots.roots
		}
		next.identity = &identity
	}
	w.state.Store(next)
	close(old.changed)
	if old.roots != nil && next.roots != old.roots {
		w.log.Info("the roots of the mesh have changed", "count", len(roots), "version", next.roots.version)
	}
}

// secret returns the current value of one of the workload's own secrets, or nil while
// there is none yet.
func (w *Workload) secret(k kind) *material {
	if k == kindLeaf {
		return w.state.Load().leaf
	}
	return w.state.Load().roots
}
