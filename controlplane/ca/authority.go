// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

// Defaults of Config; they equal those of Istio for the settings that Istio has.
const (
	defaultRootTTL = 10 * 365 * 24 * time.Hour
	defaultCheck   = time.Hour
	defaultGrace   = 20
	defaultPoll    = 10 * time.Second
)

// Config is the configuration of an Authority.
type Config struct {
	Dir         string // stores a self-signed root and the state of a rotation; created with mode 0700
	Store       Store  // replaces Dir; nil means Dir
	PluginDir   string // directory of a plugged-in authority, which takes precedence over a self-signed one; empty or without files means none
	TrustDomain string // of all issued identities
	Root        RootConfig
	MaxTTL      time.Duration         // maximum lifetime of a leaf; zero means 90 days
	Propagation time.Duration         // from the distribution of a root until it signs; zero means until each workload has renewed its leaf
	Poll        time.Duration         // interval for reading the store and the plugged-in files; zero means 10 s
	Logger      *slog.Logger          // nil means slog.Default()
	Registerer  prometheus.Registerer // nil means no metrics
	// Fault is called with what is wrong and the error, and with no error once it is well again; nil
	// means nobody listens.
	Fault func(what, err string)
}

// RootConfig configures self-signed roots.
type RootConfig struct {
	KeyType certs.KeyType // empty means ECDSA P-256
	TTL     time.Duration // lifetime of a root; zero means 10 years
	Check   time.Duration // interval for checking the age of the root; zero means 1 h, negative never
	Grace   int           // percentage of the lifetime that remains when a root is renewed; zero means 20
}

// Authority signs certificates. It is safe for concurrent use.
type Authority struct {
	cfg     Config
	store   Store
	plugin  *plugin // nil without PluginDir
	metrics *authorityMetrics
	poke    chan struct{} // holds at most one pending request to reload

	// state is the current state. It is immutable, except for its counter of the longest lifetime.
	state atomic.Pointer[state]

	// mu guards the inputs of the next state. It is held while the store is read or written;
	// signing does not need it.
	mu        sync.Mutex
	kept      Material // what the store contains, or should contain
	version   string   // version of the store that kept is based on
	unsaved   bool     // kept contains changes that could not be saved yet
	extra     map[string]extraRoots
	settled   settled
	grown     bool      // the longest lifetime of a leaf was not saved yet
	nextCheck time.Time // when to check the lifetime of a self-signed root
	said      said

	unwatched bool // for tests: detect changes of files only by polling
}

// Open loads the authority, or creates a self-signed root if there is none. Renewal and reloading
// of files start with Run.
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

// complete validates the configuration and sets defaults.
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
		return fmt.Errorf("the lifetime of a root cannot be %s; set a minute or more", c.Root.TTL)
	case c.Root.Grace < 1 || c.Root.Grace > 99:
		return fmt.Errorf("a root cannot be renewed when %d percent of its lifetime are left; set 1 to 99", c.Root.Grace)
	case c.MaxTTL < 0 || c.Propagation < 0 || c.Poll < 0:
		return errors.New("the longest lifetime of a leaf, the propagation time and the poll interval must not be negative")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// place returns the directory for error messages; errors of a Store name the Store themselves.
func (a *Authority) place() string {
	if a.cfg.Store != nil {
		return ""
	}
	return " in " + a.cfg.Dir
}

// TrustDomain returns the trust domain of all issued identities.
func (a *Authority) TrustDomain() string { return a.cfg.TrustDomain }

// RootPEM returns all trusted roots as PEM: the current roots, the next ones, and previous ones as
// long as certificates below them are valid.
func (a *Authority) RootPEM() []byte { return a.state.Load().bundlePEM }

// CRLPEM returns the certificate revocation lists as PEM, or nil if there are none.
func (a *Authority) CRLPEM() []byte { return a.state.Load().crl.pem() }

// Changed returns a channel that is closed when the roots, the revocation lists or the signer
// change. To miss no change, get the channel before the value.
func (a *Authority) Changed() <-chan struct{} { return a.state.Load().changed }

// DerivedKey returns a key for a purpose that all authorities with the same private key derive. It
// changes when another key signs.
func (a *Authority) DerivedKey(purpose string) ([]byte, error) {
	secret, err := x509.MarshalPKCS8PrivateKey(a.state.Load().signer.key)
	if err != nil {
		return nil, fmt.Errorf("deriving a key from that of the authority: %w", err)
	}
	return hkdf.Key(sha256.New, secret, nil, purpose, sha256.Size)
}

// Reload asks Run to read the store and the plugged-in files immediately. It does not wait.
func (a *Authority) Reload() {
	select {
	case a.poke <- struct{}{}:
	default: // a request is already pending
	}
}

// SetRoots sets the additional roots of a source, as PEM, and replaces its previous ones. An empty
// rootsPEM removes them. It returns an error if rootsPEM is invalid.
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
