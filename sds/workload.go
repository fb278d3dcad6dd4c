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

// Workload keeps one identity valid: with an authority, made by NewWorkload, or
// with files that somebody else keeps valid, made by NewFileWorkload.
type Workload struct {
	log   *slog.Logger
	run   func(context.Context) error
	state atomic.Pointer[state]
	wish  chan struct{} // holds at most one wish for a renewal

	mu sync.Mutex // guards in, and orders the changes of state
	in inputs
}

// inputs is what a state is made of. Each of them changes by itself.
type inputs struct {
	own     *Identity           // chain and key; nil before the first
	roots   []*x509.Certificate // of the authority, or of the root file
	anchors []*x509.Certificate // trusted beside them
	crl     []byte              // what is revoked, PEM; may be empty
}

// state is an immutable snapshot of what is in force.
type state struct {
	identity *Identity     // nil before the first certificate
	leaf     *material     // secret "default"; nil before the first certificate
	roots    *material     // secret "ROOTCA"; nil before the first roots
	changed  chan struct{} // closed once a later state is in force
}

// start makes the first state, in which nothing is known.
func (w *Workload) start() {
	w.wish = make(chan struct{}, 1)
	w.state.Store(&state{changed: make(chan struct{})})
}

// Current returns the identity in force, or nil before the first one. It may
// have run out, if no authority could be reached for so long.
func (w *Workload) Current() *Identity { return w.state.Load().identity }

// Changed returns a channel that is closed at the next change of Current or of
// the roots. Take the channel first and look at Current then, so that no change
// is missed.
func (w *Workload) Changed() <-chan struct{} { return w.state.Load().changed }

// Certificate returns the certificate for TLS connections, or nil if there is
// none or it has run out.
func (w *Workload) Certificate() *tls.Certificate {
	id := w.Current()
	if id == nil || !time.Now().Before(id.NotAfter) {
		return nil
	}
	return id.cert
}

// Renew asks for another certificate before it is time, because somebody refuses
// the one in force: its authority may have been replaced. It does not wait, and
// means nothing to a workload of files. Wishes in a row are granted ever more
// seldom, as another certificate of the same authority would be refused, too.
func (w *Workload) Renew() {
	select {
	case w.wish <- struct{}{}:
	default: // one wish is enough
	}
}

// Run keeps the identity valid until ctx is done.
func (w *Workload) Run(ctx context.Context) error { return w.run(ctx) }

// update changes the inputs, puts what follows from them in force and wakes who
// waits for a change, if it is one.
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
	if len(w.in.roots) > 0 { // anchors alone would refuse our own authority
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

// secret returns what is in force of one of the workload's own secrets; nil as
// long as it is awaited.
func (w *Workload) secret(k kind) *material {
	if k == kindLeaf {
		return w.state.Load().leaf
	}
	return w.state.Load().roots
}
