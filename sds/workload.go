// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	defaultTTL        = 24 * time.Hour
	defaultGraceRatio = 0.5
	// jitter spreads renewals, so that workloads started together do not ask
	// together.
	jitter = 0.1
	// minDelay is the least time between two certificates.
	minDelay = time.Second
	// clockCheck is how often the wall clock is looked at while waiting: timers
	// stand still while a machine sleeps, certificates do not.
	clockCheck = time.Minute

	firstRetry = 100 * time.Millisecond
	maxRetry   = 30 * time.Second
	// logEvery is how many equal errors in a row make one line of the log.
	logEvery = 20
)

// WorkloadConfig describes a Workload.
type WorkloadConfig struct {
	ID         certs.ID      // identity to ask for
	KeyType    certs.KeyType // empty means ECDSA P-256
	TTL        time.Duration // life to ask for; zero means 24 h
	GraceRatio float64       // share of life that is left when a certificate is renewed; zero means 0.5
	// Sign has a PEM certificate request signed. It makes one attempt; retries
	// are the Workload's.
	Sign       func(ctx context.Context, csr []byte, ttl time.Duration) ([][]byte, error)
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// Workload keeps one identity valid.
type Workload struct {
	cfg     WorkloadConfig
	metrics *metrics
	state   atomic.Pointer[state]
}

// state is an immutable snapshot; Run replaces it.
type state struct {
	identity *Identity     // nil before the first certificate
	changed  chan struct{} // closed once a later state is in force
}

// NewWorkload returns a Workload. It asks for nothing before Run.
func NewWorkload(cfg WorkloadConfig) (*Workload, error) {
	if err := cfg.ID.Validate(); err != nil {
		return nil, fmt.Errorf("identity of the workload: %w; see TRUST_DOMAIN, POD_NAMESPACE and SERVICE_ACCOUNT", err)
	}
	if err := cfg.KeyType.Validate(); err != nil {
		return nil, fmt.Errorf("identity of the workload: %w", err)
	}
	if cfg.Sign == nil {
		return nil, errors.New("identity of the workload: there is no certificate authority to ask")
	}
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	if cfg.TTL < time.Second {
		return nil, fmt.Errorf("identity of the workload: a certificate cannot live %s; SECRET_TTL is at least 1s", cfg.TTL)
	}
	if cfg.GraceRatio == 0 {
		cfg.GraceRatio = defaultGraceRatio
	}
	if !(cfg.GraceRatio > 0 && cfg.GraceRatio < 1) {
		return nil, fmt.Errorf("identity of the workload: SECRET_GRACE_PERIOD_RATIO is %v; it must lie between 0 and 1", cfg.GraceRatio)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Workload{cfg: cfg}
	w.state.Store(&state{changed: make(chan struct{})})
	var err error
	w.metrics, err = newMetrics(cfg.Registerer, w.Current)
	return w, err
}

// Current returns the identity in force, or nil before the first one. It may
// have run out, if no authority could be reached for so long.
func (w *Workload) Current() *Identity { return w.state.Load().identity }

// Changed returns a channel that is closed at the next change of Current. Take
// the channel first and look at Current then, so that no change is missed.
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

// Run gets the first certificate and renews it until ctx is done.
func (w *Workload) Run(ctx context.Context) error {
	for {
		id, err := w.obtain(ctx)
		if err != nil {
			return nil // only ends with ctx
		}
		w.publish(id)
		renewAt := w.renewAt(id, time.Now())
		w.cfg.Logger.Info("certificate received", "identity", id.ID.String(),
			"expires", id.NotAfter.UTC().Format(time.RFC3339), "duration", time.Until(renewAt).Round(time.Second).String())
		if id.ID != w.cfg.ID {
			w.cfg.Logger.Warn("the authority certified another identity than was asked for", "identity", id.ID.String(), "name", w.cfg.ID.String())
		}
		if waitUntil(ctx, renewAt) != nil {
			return nil
		}
	}
}

// publish puts an identity in force and wakes who waits for a change.
func (w *Workload) publish(id *Identity) {
	old := w.state.Swap(&state{identity: id, changed: make(chan struct{})})
	close(old.changed)
}

// renewAt returns when a certificate that was received now is renewed.
func (w *Workload) renewAt(id *Identity, now time.Time) time.Time {
	life := id.NotAfter.Sub(now)
	grace := float64(life) * w.cfg.GraceRatio * (1 - jitter + 2*jitter*rand.Float64())
	return now.Add(max(life-time.Duration(grace), minDelay))
}

// waitUntil returns nil once the wall clock shows t, or the error of ctx.
func waitUntil(ctx context.Context, t time.Time) error {
	t = t.Round(0) // without the monotonic clock, which stands still in sleep
	for {
		left := t.Sub(time.Now().Round(0))
		if left <= 0 {
			return nil
		}
		if err := sleep(ctx, min(left, clockCheck)); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// obtain asks for a certificate until it gets one; its only error is that of
// ctx. The key is made once and kept over all attempts.
func (w *Workload) obtain(ctx context.Context) (*Identity, error) {
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(maxRetry),
		backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
	var key crypto.Signer
	var log retryLog
	for attempt := 1; ; attempt++ {
		id, err := w.attempt(ctx, &key)
		if err == nil {
			return id, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w.metrics.failed(w.Current() != nil)
		if log.wants(err, w.Certificate() == nil) {
			w.logFailure(ctx, err, attempt)
		}
		if err := sleep(ctx, retry.NextBackOff()); err != nil {
			return nil, err
		}
		w.metrics.retries.Inc()
	}
}

// attempt asks once. It makes the key if there is none yet.
func (w *Workload) attempt(ctx context.Context, key *crypto.Signer) (*Identity, error) {
	if *key == nil {
		k, err := certs.NewKey(w.cfg.KeyType)
		if err != nil {
			return nil, fmt.Errorf("making private key: %w", err)
		}
		*key = k
	}
	csr, err := certs.NewCSR(*key, w.cfg.ID)
	if err != nil {
		return nil, err
	}
	w.metrics.requests.Inc()
	elements, err := w.cfg.Sign(ctx, csr, w.cfg.TTL)
	if err != nil {
		return nil, err
	}
	return newIdentity(*key, elements, w.cfg.ID, time.Now())
}

// logFailure says what does not work and how bad it is.
func (w *Workload) logFailure(ctx context.Context, err error, attempt int) {
	id := w.Current()
	level, message := slog.LevelWarn, "certificate not renewed yet, the old one stays in force"
	attrs := []slog.Attr{slog.Any("err", err), slog.Int("attempt", attempt)}
	switch {
	case id == nil:
		level, message = slog.LevelError, "no certificate yet, Envoy waits for it"
	case w.Certificate() == nil:
		level, message = slog.LevelError, "the certificate has run out and cannot be renewed, peers will refuse it"
	}
	if id != nil {
		attrs = append(attrs, slog.String("expires", id.NotAfter.UTC().Format(time.RFC3339)))
	}
	w.cfg.Logger.LogAttrs(ctx, level, message, attrs...)
}

// retryLog thins out the errors of one row of attempts: the first one, each one
// of another wording and the first one without a valid certificate are logged
// at once, equal ones now and then.
type retryLog struct {
	last    string
	without bool
	equal   int
}

func (l *retryLog) wants(err error, without bool) bool {
	if text := err.Error(); text != l.last || without != l.without {
		l.last, l.without, l.equal = text, without, 0
		return true
	}
	l.equal++
	return l.equal%logEvery == 0
}
