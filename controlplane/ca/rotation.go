// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// A root is replaced in three steps, so that at any time every workload trusts the certificates
// that others present:
//
//	add     the new root is distributed in addition to the old one, which still signs
//	switch  after the propagation time, the new root signs
//	remove  when the last certificate below the old root has expired, the old root
//	        is no longer distributed
//
// The same steps apply to the renewal of a self-signed root, to the replacement of a plugged-in
// authority, and to a change from one kind to the other. A new intermediate below a trusted root
// signs immediately.
//
// The steps depend only on the record and the clock. Replicas that share a Store therefore take
// them at the same time, and a restart loses none.

const (
	// skew is the maximum clock difference between two machines.
	skew = 5 * time.Minute
	// minPropagation is the minimum propagation time that is derived from the lifetime of leaves:
	// by then, all replicas have read the record.
	minPropagation = time.Minute
)

// The steps of a rotation, as used by the metric.
const (
	stepAdd    = "add"
	stepSwitch = "switch"
	stepRemove = "remove"
)

// record is the persistent state of the authority besides the keys. It is saved as JSON in
// rotation.json.
type record struct {
	Signer      string    `json:"signer"`                      // fingerprint of the signing certificate
	Plugged     bool      `json:"pluggedIn,omitempty"`         // its key is not in the store
	SignerRoots []string  `json:"signerRoots"`                 // fingerprints of its roots
	Longest     duration  `json:"longestLife"`                 // of the leaves that it signed
	Earlier     time.Time `json:"earlierLeavesUntil,omitzero"` // when the last leaf below its roots expires that it did not sign or that was not recorded
	Renewed     time.Time `json:"renewedBy,omitzero"`          // when each workload has a leaf that it signed
	Next        string    `json:"next,omitempty"`              // fingerprint of the next signing certificate
	SwitchAt    time.Time `json:"switchAt,omitzero"`           // when Next becomes the signer
	Roots       []root    `json:"roots"`                       // all trusted roots
}

// root is one trusted root in the record.
type root struct {
	PEM   string    `json:"certificate"`
	Added time.Time `json:"added,omitzero"` // when it was first distributed; zero means long ago
	Until time.Time `json:"until,omitzero"` // when the last leaf below it expires; zero while it is in use
	Kept  bool      `json:"kept,omitempty"` // was added to root-cert.pem manually, before there was a record

	cert *x509.Certificate
}

// duration is encoded as text, for example 24h.
type duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is not a lifetime", v)
	}
	*d = duration(v)
	return err
}

// parseRecord parses the record. It returns an empty record if there is none.
func parseRecord(m Material) (*record, error) {
	r := &record{}
	text := m.text(recordFile)
	if text == nil {
		return r, nil
	}
	const cure = "restore it from a backup, or remove it if no root was replaced recently"
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s cannot be read (%w): "+cure, recordFile, err)
	}
	for i := range r.Roots {
		chain, err := certs.ParseChain([]byte(r.Roots[i].PEM))
		if err != nil || len(chain) != 1 {
			return nil, fmt.Errorf("root %d of %s cannot be read: "+cure, i+1, recordFile)
		}
		r.Roots[i].cert = chain[0]
	}
	return r, nil
}

// encode returns the JSON encoding of the record.
func (r *record) encode() ([]byte, error) {
	out, err := json.MarshalIndent(r, "", "  ")
	return append(out, '\n'), err
}

// step is a completed step, with the root that it concerns.
type step struct {
	name string
	cert *x509.Certificate
	// alive is until when certificates below a removed root may still be valid, because the root
	// was removed from the files; zero if there are none.
	alive time.Time
}

// situation is the input for the next step.
type situation struct {
	now         time.Time
	target      *signer // desired signer
	current     *signer // signer according to the record; nil if its key is gone
	fresh       bool    // target was just created
	propagation time.Duration
	maxTTL      time.Duration
}

// advance takes the steps that are due and returns them.
func (r *record) advance(in situation) (steps []step) {
	before := r.SignerRoots
	switch {
	case r.Signer == "":
		r.begin(in)
	case r.Signer == in.target.print:
		r.Next, r.SwitchAt = "", time.Time{}
		r.SignerRoots = fingerprints(in.target.roots)
		r.add(in.target.roots, in.now)
	default:
		steps = r.towards(in)
	}
	if r.Signer == in.target.print {
		r.Plugged = in.target.kind == kindPlugged
	}
	return append(steps, r.prune(in, before)...)
}

// begin initializes the record of an authority. An authority that is not new may have signed leaves
// of any lifetime.
func (r *record) begin(in situation) {
	r.Signer, r.SignerRoots = in.target.print, fingerprints(in.target.roots)
	r.add(in.target.roots, time.Time{})
	if !in.fresh {
		r.Earlier = in.now.Add(in.maxTTL).Truncate(time.Second)
		r.Renewed = in.now.Add(min(defaultTTL, in.maxTTL)).Truncate(time.Second)
	}
}

// towards starts or continues the replacement of the current signer by the target.
func (r *record) towards(in situation) (steps []step) {
	if r.Next != in.target.print {
		r.Next = in.target.print
		r.add(in.target.roots, in.now)
		r.SwitchAt = r.switchTime(in).Truncate(time.Second)
		if in.now.Before(r.SwitchAt) {
			steps = append(steps, step{name: stepAdd, cert: in.target.cert})
		}
	}
	r.add(in.target.roots, in.now)
	if in.current != nil && in.now.Before(r.SwitchAt) {
		return steps
	}
	r.leave(in)
	wanted := fingerprints(in.target.roots)
	r.Signer, r.SignerRoots = in.target.print, wanted
	r.Next, r.SwitchAt = "", time.Time{}
	return append(steps, step{name: stepSwitch, cert: in.target.cert})
}

// leave records until when leaves of the previous signer may be valid.
func (r *record) leave(in situation) {
	r.Renewed = in.now.Add(time.Duration(r.Longest) + skew).Truncate(time.Second)
	last := r.Renewed
	if r.Earlier.After(last) {
		last = r.Earlier
	}
	wanted := fingerprints(in.target.roots)
	r.Longest, r.Earlier = 0, time.Time{}
	for i := range r.Roots {
		k := &r.Roots[i]
		print := fingerprint(k.cert)
		if slices.Contains(r.SignerRoots, print) && last.After(k.Until) {
			k.Until = last
		}
		if k.Until.After(k.cert.NotAfter) {
			k.Until = k.cert.NotAfter // no leaf outlives it
		}
		if slices.Contains(wanted, print) { // remains in use, with these leaves below it
			if k.Until.After(r.Earlier) {
				r.Earlier = k.Until
			}
			k.Until = time.Time{}
		}
	}
}

// switchTime returns when the target may sign: after its root was distributed for the propagation
// time, but no later than halfway through the remaining lifetime of the old one.
func (r *record) switchTime(in situation) time.Time {
	if in.current == nil || in.current.anchor.Equal(in.target.anchor) {
		return in.now
	}
	wait := in.propagation
	if wait == 0 {
		wait = max(time.Duration(r.Longest), minPropagation)
	}
	at := in.now
	if k := r.find(fingerprint(in.target.anchor)); k != nil {
		if at = k.Added.Add(wait); in.propagation == 0 && at.Before(r.Renewed) {
			at = r.Renewed
		}
	}
	if half := in.now.Add(in.current.notAfter.Sub(in.now) / 2); at.After(half) {
		at = half
	}
	if at.Before(in.now) {
		at = in.now
	}
	return at
}

func (r *record) find(print string) *root {
	for i := range r.Roots {
		if fingerprint(r.Roots[i].cert) == print {
			return &r.Roots[i]
		}
	}
	return nil
}

// add adds roots that are not trusted yet.
func (r *record) add(roots []*x509.Certificate, now time.Time) {
	for _, c := range roots {
		if r.find(fingerprint(c)) == nil {
			r.Roots = append(r.Roots, root{PEM: string(certs.EncodeChain(c)), Added: now.Truncate(time.Second), cert: c})
		}
	}
}

// prune removes the roots that are no longer needed. A root that was distributed but never signed
// is removed when it is no longer the target. A previous root that was removed from the files is
// removed immediately, because its removal may be urgent.
func (r *record) prune(in situation, before []string) (steps []step) {
	next := fingerprints(in.target.roots)
	r.Roots = slices.DeleteFunc(r.Roots, func(k root) bool {
		print := fingerprint(k.cert)
		switch {
		case slices.Contains(r.SignerRoots, print), r.Next != "" && slices.Contains(next, print):
			return false
		case k.Kept:
			return !in.now.Before(k.cert.NotAfter)
		case in.now.Before(k.Until):
			return false
		}
		removed := step{name: stepRemove, cert: k.cert}
		if k.Until.IsZero() && slices.Contains(before, print) && in.now.Before(r.Renewed) {
			removed.alive = r.Renewed
		}
		steps = append(steps, removed)
		return true
	})
	return steps
}

// due returns the time of the next step, or zero if none is pending.
func (r *record) due() time.Time {
	next := r.SwitchAt
	for _, k := range r.Roots {
		if !k.Until.IsZero() && (next.IsZero() || k.Until.Before(next)) {
			next = k.Until
		}
	}
	return next
}

// phase returns the phase of the rotation.
func (r *record) phase() string {
	if r.Next != "" {
		return phaseAdd
	}
	for _, k := range r.Roots {
		if !k.Until.IsZero() {
			return phaseSwitch
		}
	}
	return phaseSteady
}

// trusted returns the trusted roots, those of the signer first.
func (r *record) trusted() []*x509.Certificate {
	var first, rest []*x509.Certificate
	for _, k := range r.Roots {
		if slices.Contains(r.SignerRoots, fingerprint(k.cert)) {
			first = append(first, k.cert)
		} else {
			rest = append(rest, k.cert)
		}
	}
	return append(first, rest...)
}
