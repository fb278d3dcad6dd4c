// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/certs"
)

const (
	defaultTTL        = 24 * time.Hour
	defaultGraceRatio = 0.5
	// jitter spreads the renewals of workloads that were started together.
	jitter = 0.1
	// minDelay is the minimum time between two certificates.
	minDelay = time.Second
	// clockCheck is how often the wall clock is checked while waiting: timers stop
	// while a machine is suspended, but certificates expire.
	clockCheck = time.Minute

	// patience is the minimum time between a certificate and its first requested
	// early renewal; it doubles with each.
	patience = 10 * time.Second

	firstRetry = 100 * time.Millisecond
	maxRetry   = 30 * time.Second
	// maxRetryAfter is the maximum retry delay that an authority can demand.
	maxRetryAfter = 10 * time.Minute
	// logEvery is the number of equal consecutive errors per log line.
	logEvery = 20
)

// WorkloadConfig configures a Workload with an authority.
type WorkloadConfig struct {
	ID         certs.ID      // identity to request
	KeyType    certs.KeyType // empty means ECDSA P-256
	TTL        time.Duration // lifetime to request; zero means 24 h
	GraceRatio float64       // remaining share of the lifetime at which to renew; zero means 0.5
	// Sign makes one attempt to have a PEM certificate request signed. The Workload
	// retries. An error with a method RetryAfter() time.Duration sets the minimum
	// delay of the next attempt.
	Sign func(ctx context.Context, csr []byte, ttl time.Duration) ([][]byte, error)
	// Saved is the directory of an earlier Output; "" means none. A valid identity
	// in it is used until the authority has signed a new one.
	Saved string
	// Kept returns an identity of an earlier run, as PEM. If it is valid, it is used
	// until the authority has signed a new one, which is requested at once. It may
	// be nil.
	Kept       func() (chain, key, roots []byte, err error)
	Files      *Files                // follows CRLFile, and has secrets to include in the metrics; may be nil
	CRLFile    string                // revoked certificates, PEM; empty means none
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil means no metrics
}

// renewal renews the identity of a workload with an authority.
type renewal struct {
	*Workload
	cfg      WorkloadConfig
	metrics  *metrics
	patience time.Duration // of the next early renewal; loop owns it
}

// NewWorkload returns a Workload whose certificates an authority signs. It starts
// nothing; see Run.
func NewWorkload(cfg WorkloadConfig) (*Workload, error) {
	if err := cfg.ID.Validate(); err != nil {
		return nil, fmt.Errorf("identity of the workload: %w; see TRUST_DOMAIN, POD_NAMESPACE and SERVICE_ACCOUNT", err)
	}
	if err := cfg.KeyType.Validate(); err != nil {
		return nil, fmt.Errorf("identity of the workload: %w", err)
	}
	if cfg.KeyType == "" {
		cfg.KeyType = certs.ECDSAP256
	}
	if cfg.Sign == nil {
		return nil, errors.New("identity of the workload: there is no certificate authority")
	}
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	if cfg.TTL < time.Second {
		return nil, fmt.Errorf("identity of the workload: the lifetime of a certificate cannot be %s; SECRET_TTL must be at least 1s", cfg.TTL)
	}
	if cfg.GraceRatio == 0 {
		cfg.GraceRatio = defaultGraceRatio
	}
	if !(cfg.GraceRatio > 0 && cfg.GraceRatio < 1) {
		return nil, fmt.Errorf("identity of the workload: SECRET_GRACE_PERIOD_RATIO is %v; it must be between 0 and 1", cfg.GraceRatio)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.CRLFile != "" && cfg.Files == nil {
		return nil, errors.New("identity of the workload: the file with revoked certificates is not watched")
	}
	r := &renewal{Workload: &Workload{log: cfg.Logger}, cfg: cfg, patience: patience}
	r.Workload.run = r.loop
	r.start()
	var err error
	if r.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	if err := registerExpiry(cfg.Registerer, r.Workload, cfg.Files); err != nil {
		return nil, err
	}
	if cfg.CRLFile != "" {
		r.followCRL(cfg.Files, cfg.CRLFile)
	}
	return r.Workload, nil
}

// loop obtains the first certificate and renews it until ctx is done.
func (r *renewal) loop(ctx context.Context) error {
	if id := r.kept(); id != nil {
		r.publish(id)
		r.log.Info("certificate of an earlier run is used until the authority has signed another one",
			"identity", id.ID.String(), "expires", id.NotAfter.UTC().Format(time.RFC3339))
	} else if id := r.saved(); id != nil {
		r.publish(id)
		renewAt := r.renewAt(id, id.cert.Leaf.NotBefore, time.Now())
		r.log.Info("certificate found; it is used until the authority has signed another one", "path", r.cfg.Saved,
			"identity", id.ID.String(), "expires", id.NotAfter.UTC().Format(time.RFC3339), "duration", time.Until(renewAt).Round(time.Second).String())
		if r.wait(ctx, renewAt) != nil {
			return nil
		}
	}
	for {
		id, err := r.obtain(ctx)
		if err != nil {
			return nil // only ends with ctx
		}
		if waitUntil(ctx, r.switchAt(id, time.Now())) != nil {
			return nil
		}
		r.publish(id)
		now := time.Now()
		renewAt := r.renewAt(id, now, now)
		r.log.Info("certificate received", "identity", id.ID.String(),
			"expires", id.NotAfter.UTC().Format(time.RFC3339), "duration", time.Until(renewAt).Round(time.Second).String())
		if id.ID != r.cfg.ID {
			r.log.Warn("the authority certified an identity other than the requested one", "identity", id.ID.String(), "name", r.cfg.ID.String())
		}
		if r.wait(ctx, renewAt) != nil {
			return nil
		}
	}
}

// wait returns nil when it is time to renew, or an early renewal is requested.
func (r *renewal) wait(ctx context.Context, renewAt time.Time) error {
	select {
	case <-r.wish: // it concerned the previous certificate
	default:
	}
	from := time.Now()
	wished := false
	for {
		left := renewAt.Round(0).Sub(time.Now().Round(0))
		if left <= 0 {
			break
		}
		timer := time.NewTimer(min(left, clockCheck))
		// Cases: the end; time to check the clock; a requested renewal.
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-r.wish:
			timer.Stop()
			if at := from.Add(r.patience); !wished && at.Before(renewAt) {
				wished, renewAt = true, at
			}
		}
	}
	if !wished {
		r.patience = patience
		return nil
	}
	r.patience *= 2
	r.log.Warn("renewing the certificate early: a peer refuses it", "identity", r.Current().ID.String())
	return nil
}

// publish applies an identity with its roots.
func (r *renewal) publish(id *Identity) {
	r.update(func(in *inputs) { in.own, in.roots = id, id.roots })
}

// switchAt returns when to replace the old certificate by a new one: at once, unless by
// the local clock the new one is not valid yet and the old one is. Peers may then refuse
// it, so half of the remaining lifetime of the old one is waited.
func (r *renewal) switchAt(id *Identity, now time.Time) time.Time {
	old, start := r.Certificate(), id.cert.Leaf.NotBefore
	if old == nil || !start.After(now) {
		return now
	}
	at := earlier(start, now.Add(old.Leaf.NotAfter.Sub(now)/2))
	r.log.Warn("the new certificate is not valid yet by the local clock; the old one stays in force until then; compare the clocks",
		"duration", at.Sub(now).Round(time.Second).String())
	return at
}

// renewAt returns when to renew a certificate that was received at the given time. A
// local clock that is behind does not extend its lifetime.
func (r *renewal) renewAt(id *Identity, received, now time.Time) time.Time {
	leaf := id.cert.Leaf
	life := min(id.NotAfter.Sub(received), leaf.NotAfter.Sub(leaf.NotBefore))
	left := min(id.NotAfter.Sub(now), life)
	grace := float64(life) * r.cfg.GraceRatio * (1 - jitter + 2*jitter*rand.Float64())
	return now.Add(max(left-time.Duration(grace), minDelay))
}

// waitUntil returns nil once the wall clock shows t, or the error of ctx.
func waitUntil(ctx context.Context, t time.Time) error {
	t = t.Round(0) // without the monotonic clock, which stops while suspended
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

// obtain requests a certificate until it receives one; its only error is that of ctx. All
// attempts use the same key.
func (r *renewal) obtain(ctx context.Context) (*Identity, error) {
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(maxRetry),
		backoff.WithMultiplier(2), backoff.WithMaxElapsedTime(0))
	var key crypto.Signer
	var log retryLog
	for attempt := 1; ; attempt++ {
		id, err := r.attempt(ctx, &key)
		if err == nil {
			return id, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.metrics.failed(r.Current() != nil)
		if log.wants(err, r.Certificate() == nil) {
			r.logFailure(ctx, err, attempt)
		}
		if err := sleep(ctx, max(retry.NextBackOff(), retryAfter(err))); err != nil {
			return nil, err
		}
		r.metrics.retries.Inc()
	}
}

// retryAfter returns the delay that the authority demands, with jitter, so that workloads
// that were rejected together do not retry together.
func retryAfter(err error) time.Duration {
	var busy interface{ RetryAfter() time.Duration }
	if !errors.As(err, &busy) || busy.RetryAfter() <= 0 {
		return 0
	}
	wait := min(busy.RetryAfter(), maxRetryAfter)
	return wait + time.Duration(rand.Float64()*2*jitter*float64(wait))
}

// attempt makes one request. It creates the key if there is none yet.
func (r *renewal) attempt(ctx context.Context, key *crypto.Signer) (*Identity, error) {
	if *key == nil {
		k, err := certs.NewKey(r.cfg.KeyType)
		if err != nil {
			return nil, fmt.Errorf("making private key: %w", err)
		}
		*key = k
	}
	csr, err := certs.NewCSR(*key, r.cfg.ID)
	if err != nil {
		return nil, err
	}
	r.metrics.requests.Inc()
	elements, err := r.cfg.Sign(ctx, csr, r.cfg.TTL)
	if err != nil {
		return nil, err
	}
	return newIdentity(*key, elements, r.cfg.ID, time.Now())
}

// logFailure logs a failure with a level for its effect.
func (r *renewal) logFailure(ctx context.Context, err error, attempt int) {
	id := r.Current()
	level, message := slog.LevelWarn, "certificate not renewed yet; the old one stays in force"
	attrs := []slog.Attr{slog.Any("err", err), slog.Int("attempt", attempt)}
	switch {
	case id == nil:
		level, message = slog.LevelError, "no certificate yet; Envoy waits for it"
	case r.Certificate() == nil:
		level, message = slog.LevelError, "the certificate has expired and cannot be renewed; peers will refuse it"
	}
	if id != nil {
		attrs = append(attrs, slog.String("expires", id.NotAfter.UTC().Format(time.RFC3339)))
	}
	r.log.LogAttrs(ctx, level, message, attrs...)
}

// retryLog limits the log lines of consecutive failures: it logs the first error, each
// error with another text and the first one without a valid certificate at once, and
// repeated ones from time to time.
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
