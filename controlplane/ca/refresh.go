// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/outrigger-mesh/outrigger/certs"
)

// conflicts is the maximum number of attempts when others save first. Each of those normally makes
// the required change, so that the second attempt finds nothing to do.
const conflicts = 5

// said contains the last error of each kind, so that each error is logged once.
type said struct{ save, grown, material, plugin, crl, old, ending string }

// Messages with several callers.
const (
	unsavedRoots    = "the history of roots cannot be stored: a restart forgets those that were replaced"
	unsavedLifetime = "the longest lifetime of certificates cannot be stored; retrying"
	rejectedCRL     = "the revocation lists are rejected; the last valid ones stay in force"
	endingAuthority = "the certificate authority expires and is not renewed automatically: replace it"
)

// say logs an error that was not logged yet. A nil error means that the problem is resolved.
func (a *Authority) say(last *string, message string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if *last == text {
		return
	}
	if *last = text; err != nil {
		a.cfg.Logger.Warn(message, "err", err)
	}
	if a.cfg.Fault != nil {
		a.cfg.Fault(message, text)
	}
}

// decision is the result of evaluating the store, the plugged-in files and the clock.
type decision struct {
	material Material // to be saved
	state    *state
	steps    []step
	made     bool // a root was created, which must not be lost
	due      time.Time
}

// settled identifies the inputs of the current state and when it must be recomputed.
type settled struct {
	version, plugged string
	due              time.Time
}

// refresh recomputes the state if its inputs changed. The caller holds mu.
func (a *Authority) refresh(ctx context.Context) error {
	var err error
	for range conflicts {
		if err = a.attempt(ctx); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return err
}

func (a *Authority) attempt(ctx context.Context) error {
	loaded, version, loadErr := a.store.Load(ctx)
	m := loaded
	switch {
	case loadErr != nil && a.state.Load() == nil && a.pluggedIn() == nil:
		return loadErr
	case loadErr != nil:
		m = a.kept // continue with the known material
	case a.unsaved && version == a.version:
		m = a.kept
	case a.lost(loaded):
		m = a.kept
		a.cfg.Logger.Warn("the certificate authority was removed from its store and is written there again")
	case a.isSettled(version):
		return nil
	}
	d, err := a.decide(m)
	if err != nil {
		return err
	}
	saveErr := loadErr
	if loadErr == nil && !loaded.Equal(d.material) {
		saveErr = a.store.Save(ctx, d.material, version)
	}
	if errors.Is(saveErr, ErrConflict) || saveErr != nil && d.made {
		a.nextCheck = time.Time{} // no renewal happened
		return saveErr
	}
	a.kept, a.version, a.unsaved = d.material, version, saveErr != nil
	a.grown = a.unsaved
	a.settled = settled{version, a.pluggedHash(), d.due}
	if saveErr != nil || !loaded.Equal(d.material) {
		a.settled = settled{due: d.due} // the store has another version now
	}
	a.log(d)
	a.publish(d.state)
	if saveErr != nil && a.pluggedIn() != nil {
		// The signing key is not in the store; only the history is missing there.
		a.say(&a.said.save, unsavedRoots, saveErr)
		return nil
	}
	if saveErr == nil {
		a.say(&a.said.save, unsavedRoots, nil)
		a.say(&a.said.grown, unsavedLifetime, nil)
	}
	return saveErr
}

// lost reports whether the store had the signing key and has lost it.
func (a *Authority) lost(loaded Material) bool {
	return a.state.Load() != nil && a.pluggedIn() == nil && len(a.kept[keyFile]) > 0 &&
		len(loaded[keyFile]) == 0 && len(loaded[certFile]) == 0
}

// isSettled reports whether recomputing the state would not change it.
func (a *Authority) isSettled(version string) bool {
	now := time.Now()
	s := a.settled
	return s.version != "" && s.version == version && s.plugged == a.pluggedHash() && now.Before(a.nextCheck) &&
		(s.due.IsZero() || now.Before(s.due)) && !a.grown
}

func (a *Authority) pluggedIn() *signer {
	if a.plugin == nil {
		return nil
	}
	return a.plugin.good
}

func (a *Authority) pluggedHash() string {
	if a.plugin == nil {
		return ""
	}
	return a.plugin.hash
}

// log logs the steps of a decision.
func (a *Authority) log(d *decision) {
	if d.made {
		log := a.cfg.Logger
		if a.cfg.Store == nil {
			log = log.With("path", a.cfg.Dir)
		}
		log.Info("created a self-signed root", "expires", time.Now().Add(a.cfg.Root.TTL).UTC().Format(time.RFC3339))
	}
	for _, s := range d.steps {
		a.metrics.steps.WithLabelValues(s.name).Inc()
		log := a.cfg.Logger.With("name", fingerprint(s.cert)[:16], "expires", s.cert.NotAfter.Format(time.RFC3339))
		switch s.name {
		case stepAdd:
			log.Info("a new authority is distributed; it signs later", "duration", time.Until(d.state.switchAt).Round(time.Second))
		case stepSwitch:
			log.Info("a new authority signs; the old root is trusted until the last certificate under it expires")
		case stepRemove:
			if !s.alive.IsZero() {
				log.Warn("a root was removed from the files and is no longer trusted, although certificates under it may be valid; workloads with such a certificate are refused until they renew it",
					"duration", time.Until(s.alive).Round(time.Second))
				continue
			}
			log.Info("a root is no longer trusted: all certificates under it have expired")
		}
	}
}

// keptPairs are the current and the next authority in the store.
type keptPairs struct{ self, next *signer }

// loadKept loads the pairs. If the next one already signs according to the clock, the first one is
// not needed and may be partially written.
func (a *Authority) loadKept(m Material, rec *record, now time.Time) (p keptPairs, err error) {
	p.next, err = loadSigner(m, layout{key: nextKeyFile, cert: nextCertFile}, a.cfg.TrustDomain)
	if err != nil {
		p.next = nil // it was not written completely
	} else {
		p.next.kind = kindSelfSigned
	}
	l := layout{keyFile, certFile, chainFile, rootFile}
	issuers, err := certs.ParseChain(m[certFile])
	if err == nil && issuers[0].CheckSignatureFrom(issuers[0]) == nil {
		l.root, l.chain = "", "" // root-cert.pem is only written, never read
	}
	p.self, err = loadSigner(m, l, a.cfg.TrustDomain)
	switch {
	case err == nil:
		p.self.kind = kindKept
		if p.self.selfSigned() {
			p.self.kind = kindSelfSigned
		}
		return p, nil
	case errors.Is(err, errNone):
		return p, nil
	case p.next != nil && (rec.Signer == p.next.print || rec.Next == p.next.print && !now.Before(rec.SwitchAt)):
		return p, nil
	case a.pluggedIn() != nil:
		a.say(&a.said.old, "the self-signed authority that was used before cannot be read; certificates under it are not trusted after a restart", err)
		return p, nil
	}
	return p, err
}

// decide computes the desired material and state.
func (a *Authority) decide(m Material) (*decision, error) {
	now := time.Now().UTC()
	d := &decision{material: maps.Clone(m)}
	if d.material == nil {
		d.material = Material{}
	}
	rec, err := parseRecord(m)
	if err != nil {
		return nil, err
	}
	kept, err := a.loadKept(m, rec, now)
	if err != nil {
		return nil, err
	}
	if rec.Signer == "" && kept.self != nil {
		if err := a.adopt(m, rec, kept.self, now); err != nil {
			return nil, err
		}
	}
	target, err := a.target(d, rec, &kept, now)
	if err != nil {
		return nil, err
	}
	a.warnOfEnd(target, now)
	known := []*signer{kept.self, kept.next, target}
	if st := a.state.Load(); st != nil {
		known = append(known, st.signer, st.next)
		if st.signer.print == rec.Signer {
			rec.Longest = max(rec.Longest, duration(st.longest.Load()))
		}
	}
	if target.kind == kindPlugged {
		known[0], known[2] = known[2], known[0] // of equal ones, prefer the one from the files
	}
	hadSigner := rec.Signer != ""
	current := pick(known, rec.Signer)
	d.steps = rec.advance(situation{
		now: now, target: target, current: current, fresh: d.made && !hadSigner,
		propagation: a.cfg.Propagation, maxTTL: a.cfg.MaxTTL,
	})
	if hadSigner && current == nil {
		a.cfg.Logger.Warn("the key of the previous authority is missing; the new one signs at once, and some workloads may not trust its root yet", "name", target.print[:16])
	}
	d.due = rec.due()
	d.state = &state{signer: pick(known, rec.Signer), next: pick(known, rec.Next), phase: rec.phase(), switchAt: rec.SwitchAt, trusted: rec.trusted()}
	d.state.longest.Store(int64(rec.Longest))
	d.state.crl = a.revocations(m, d.state)
	d.state.complete(a.extra)
	return d, a.write(d, rec, kept)
}

// pick returns the signer with a fingerprint, or nil if there is none.
func pick(known []*signer, print string) *signer {
	for _, s := range known {
		if s != nil && s.print == print {
			return s
		}
	}
	return nil
}

// adopt initializes the trusted roots of an authority without a record: the self-signed root that a
// plugged-in authority replaces, otherwise the additional roots in the file next to it.
func (a *Authority) adopt(m Material, rec *record, self *signer, now time.Time) error {
	if a.pluggedIn() != nil {
		rec.add(self.roots, time.Time{})
		for i := range rec.Roots {
			rec.Roots[i].Until = now.Add(a.cfg.MaxTTL).Truncate(time.Second)
		}
		return nil
	}
	text := m.text(rootFile)
	if text == nil || self.kind != kindSelfSigned {
		return nil
	}
	others, err := certs.ParseChain(text)
	if err != nil {
		return fmt.Errorf("%s cannot be read (%w): restore it from a backup", rootFile, err)
	}
	for _, c := range others {
		if !c.Equal(self.cert) && rec.find(fingerprint(c)) == nil {
			rec.Roots = append(rec.Roots, root{PEM: string(certs.EncodeChain(c)), Kept: true, cert: c})
		}
	}
	return nil
}

// target returns the authority that should sign. It creates a root if there is none or if the
// current one is about to expire.
func (a *Authority) target(d *decision, rec *record, kept *keptPairs, now time.Time) (*signer, error) {
	check := !now.Before(a.nextCheck)
	if check {
		// The jitter prevents replicas that share a store from checking at the same time.
		every := a.cfg.Root.Check
		if every < 0 {
			every = 24 * time.Hour
		}
		a.nextCheck = now.Add(every - rand.N(every/10+1))
	}
	if p := a.pluggedIn(); p != nil {
		return p, nil
	}
	switch {
	case kept.next != nil && (rec.Next == kept.next.print || rec.Signer == kept.next.print):
		return kept.next, nil
	case rec.Plugged && pick([]*signer{kept.self}, rec.Signer) == nil:
		return nil, fmt.Errorf("the last authority that signed was plugged in, and is missing from %s: restore its files there, or remove %s to continue with a self-signed root, which must then be distributed to all workloads",
			a.cfg.PluginDir, recordFile)
	case kept.self == nil:
		s, err := newSelfSigned(a.cfg)
		if err != nil {
			return nil, fmt.Errorf("making self-signed root: %w", err)
		}
		kept.self, d.made = s, true
		return s, d.material.put(layout{key: keyFile, cert: certFile}, s)
	case kept.self.kind != kindSelfSigned || a.cfg.Root.Check < 0 || !check:
		return kept.self, nil
	}
	whole, rest := kept.self.cert.NotAfter.Sub(kept.self.cert.NotBefore), kept.self.cert.NotAfter.Sub(now)
	if rest > whole/100*time.Duration(a.cfg.Root.Grace) {
		return kept.self, nil
	}
	s, err := newSelfSigned(a.cfg)
	if err != nil {
		return nil, fmt.Errorf("making the next self-signed root: %w", err)
	}
	kept.next, d.made = s, true
	return s, d.material.put(layout{key: nextKeyFile, cert: nextCertFile}, s)
}

// warnOfEnd logs a warning if an authority is about to expire and is not renewed automatically.
func (a *Authority) warnOfEnd(s *signer, now time.Time) {
	whole, rest := s.cert.NotAfter.Sub(s.cert.NotBefore), s.notAfter.Sub(now)
	if s.kind == kindSelfSigned && a.cfg.Root.Check > 0 || rest > whole/100*time.Duration(a.cfg.Root.Grace) {
		a.say(&a.said.ending, endingAuthority, nil)
		return
	}
	a.say(&a.said.ending, endingAuthority,
		fmt.Errorf("%s authority %s ends at %s", s.kind, s.cert.Subject, s.notAfter.UTC().Format(time.RFC3339)))
}

// put adds a key and its certificate to the material.
func (m Material) put(l layout, s *signer) error {
	key, err := certs.MarshalKey(s.key)
	if err != nil {
		return err
	}
	m[l.key], m[l.cert] = key, certs.EncodeChain(s.cert)
	return nil
}

// write completes the material of a decision.
func (a *Authority) write(d *decision, rec *record, kept keptPairs) error {
	m := d.material
	switch {
	case kept.next != nil && rec.Signer == kept.next.print:
		m[keyFile], m[certFile] = m[nextKeyFile], m[nextCertFile]
		delete(m, nextKeyFile)
		delete(m, nextCertFile)
	case kept.next == nil || rec.Next != kept.next.print:
		delete(m, nextKeyFile)
		delete(m, nextCertFile)
	}
	if kept.self == nil || kept.self.kind == kindSelfSigned {
		m[rootFile] = certs.EncodeChain(d.state.trusted...)
	}
	text, err := rec.encode()
	m[recordFile] = text
	return err
}

// revocations parses the revocation lists. If they are invalid, it returns the last valid ones.
func (a *Authority) revocations(m Material, s *state) *revocations {
	text := m.text(crlFile)
	if a.pluggedIn() != nil {
		text = a.plugin.crl
	}
	if text == nil {
		a.say(&a.said.crl, rejectedCRL, nil)
		return nil
	}
	issuers := append(append(extraRoots{s.signer.cert}, s.signer.chain...), s.trusted...)
	r, err := readCRL(text, issuers)
	a.say(&a.said.crl, rejectedCRL, err)
	if err == nil {
		return r
	}
	if st := a.state.Load(); st != nil {
		return st.crl
	}
	return nil
}
