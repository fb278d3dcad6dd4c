// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Defaults of Config; those of the reference where it has the setting.
const (
	defaultRootTTL = 10 * 365 * 24 * time.Hour
	defaultCheck   = time.Hour
	defaultGrace   = 20
	defaultPoll    = 10 * time.Second
)

// Config describes an Authority.
type Config struct {
	Dir         string // keeps a self-signed root and what is known about a rotation; made with mode 0700
	Store       Store  // keeps them instead of Dir; nil means Dir
	PluginDir   string // holds a plugged-in authority, which goes before a self-signed one; empty or without files means none
	TrustDomain string // of all identities that are certified
	Root        RootConfig
	MaxTTL      time.Duration         // longest life of a leaf; zero means 90 days
	Propagation time.Duration         // from the day a root is given out until it signs; zero means until each workload has a leaf that came with it
	Poll        time.Duration         // how often the store and the plugged-in files are looked at; zero means 10 s
	Logger      *slog.Logger          // nil means slog.Default()
	Registerer  prometheus.Registerer // nil means no metrics
}

// RootConfig describes the roots that are made here.
type RootConfig struct {
	KeyType certs.KeyType // empty means ECDSA P-256
	TTL     time.Duration // life of a root; zero means 10 years
	Check   time.Duration // how often the age of the root is checked; zero means 1 h, negative never
	Grace   int           // a root is renewed when so many percent of its life are left; zero means 20
}

// Authority signs certificates. Any number of goroutines may use it.
type Authority struct {
	cfg     Config
	store   Store
	plugin  *plugin // nil without PluginDir
	metrics *authorityMetrics
	poke    chan struct{} // holds at most one wish for a look

	// state is what signs now. It is never changed, but for its counter of the
	// longest life.
	state atomic.Pointer[state]

	// mu guards what the next state is made of. It is held while the store is
	// read or written; signing does not need it.
	mu        sync.Mutex
	kept      Material // as the store has it, or should have it
	version   string   // of the store, on which kept is based
	unsaved   bool     // kept holds what could not be saved yet
	extra     map[string]extraRoots
	settled   settled
	grown     bool      // the longest life of a leaf is not written down yet
	nextCheck time.Time // when to look at the life of a self-signed root
	said      said

	unwatched bool // for tests: changes of files are found by looking only
}

// Open loads the authority, or makes a self-signed root if there is none.
// Nothing is renewed and no file is looked at again before Run.
func Open(ctx context.Context, cfg Config) (*Authority, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("opening certificate authority: %w", err)
	}
	a := &Authority{cfg: cfg, store: cfg.Store, poke: make(chan struct{}, 1), extra: map[string]extraRoots{}}
	if a.store == nil {
		a.store = &dirStore{dir: cfg.Dir}
	}
	if cfg.PluginDir != "" {
		a.plugin = &plugin{dir: cfg.PluginDir, trustDomain: cfg.TrustDomain}
	}
	var err error
	if a.metrics, err = newAuthorityMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.plugin != nil {
		if _, err := a.plugin.read(); err != nil {
			return nil, fmt.Errorf("opening certificate authority plugged in at %s: %w", cfg.PluginDir, err)
		}
	}
	if err := a.refresh(ctx); err != nil {
		return nil, fmt.Errorf("opening certificate authority%s: %w", a.place(), err)
	}
	return a, nil
}

// complete checks the configuration and fills in defaults.
func (c *Config) complete() error {
	if c.Dir == "" && c.Store == nil {
		return errors.New("the directory is empty")
	}
	if err := certs.ValidateTrustDomain(c.TrustDomain); err != nil {
		return err
	}
	if err := c.Root.KeyType.Validate(); err != nil {
		return err
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.Root.TTL, defaultRootTTL}, {&c.Root.Check, defaultCheck}, {&c.MaxTTL, maxTTL}, {&c.Poll, defaultPoll}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Root.Grace == 0 {
		c.Root.Grace = defaultGrace
	}
	switch {
	case c.Root.TTL < time.Minute:
		return fmt.Errorf("a root cannot live %s; give it a minute or more", c.Root.TTL)
	case c.Root.Grace < 1 || c.Root.Grace > 99:
		return fmt.Errorf("a root cannot be renewed when %d percent of its life are left; take 1 to 99", c.Root.Grace)
	case c.MaxTTL < 0 || c.Propagation < 0 || c.Poll < 0:
		return errors.New("the longest life of a leaf, the propagation time and the poll interval must not be negative")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// place names the directory in errors; a Store names itself.
func (a *Authority) place() string {
	if a.cfg.Store != nil {
		return ""
	}
	return " in " + a.cfg.Dir
}

// TrustDomain returns the trust domain of all identities that are certified.
func (a *Authority) TrustDomain() string { return a.cfg.TrustDomain }

// RootPEM returns all roots that are to be trusted, as PEM: those that sign,
// those that will sign, and those that did as long as certificates below them
// are valid.
func (a *Authority) RootPEM() []byte { return a.state.Load().bundlePEM }

// CRLPEM returns the certificate revocation lists as PEM; nil if there are none.
func (a *Authority) CRLPEM() []byte { return a.state.Load().crl.pem() }

// Changed returns a channel that is closed when the roots, the revocation
// lists or the signer change. Take the channel first, then what it is about.
func (a *Authority) Changed() <-chan struct{} { return a.state.Load().changed }

// Reload asks Run to look at the store and the plugged-in files at once. It
// does not wait.
func (a *Authority) Reload() {
	select {
	case a.poke <- struct{}{}:
	default: // one wish is enough
	}
}

// SetRoots trusts further roots, given as PEM, in the place of those that the
// same source gave before. An empty text takes them away.
func (a *Authority) SetRoots(source string, rootsPEM []byte) error {
	var extra extraRoots
	if len(rootsPEM) > 0 {
		roots, err := certs.ParseChain(rootsPEM)
		if err != nil {
			return fmt.Errorf("reading roots of %s: %w", source, err)
		}
		for _, r := range roots {
			if !r.IsCA {
				return fmt.Errorf("reading roots of %s: %s is not the certificate of an authority", source, r.Subject)
			}
		}
		extra = roots
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(extra) == 0 {
		delete(a.extra, source)
	} else {
		a.extra[source] = extra
	}
	a.publish(a.state.Load().withExtra(a.extra))
	return nil
}
