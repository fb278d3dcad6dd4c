// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"time"
)

const (
	// drainCallTimeout is the timeout of the call that begins the drain, so that an Envoy that
	// hangs does not delay shutdown.
	drainCallTimeout = time.Second
	// pollEvery is the interval at which open connections are counted.
	pollEvery = time.Second
	// pollFailures is the number of consecutive failed counts after which the wait ends, since
	// Envoy no longer responds.
	pollFailures = 3
	// drainAgainEvery is the interval at which an Envoy to be drained is asked whether it is ready.
	drainAgainEvery = 50 * time.Millisecond

	defaultKillAfter   = 5 * time.Second
	defaultMaxDuration = time.Hour
)

// DrainConfig configures how Envoy is drained and stopped.
type DrainConfig struct {
	// InboundOnly drains only inbound listeners, so that a sidecar's
	// application can still reach others while it finishes its work.
	InboundOnly bool
	// Duration is how long Envoy keeps serving after the drain has begun. It is ignored with
	// ExitOnZero.
	Duration time.Duration
	// ExitOnZero ends the drain as soon as no connections are open.
	ExitOnZero bool
	// MinDuration is the time to wait before the first count of connections.
	MinDuration time.Duration
	// MaxDuration is the maximum duration of a drain with ExitOnZero, including MinDuration. 0
	// means one hour.
	MaxDuration time.Duration
	// IgnorePorts are the listener ports whose connections are not counted: readiness and metrics.
	IgnorePorts []int
	// KillAfter is the time between SIGTERM and SIGKILL. 0 means five seconds.
	KillAfter time.Duration
	// Now, when closed, kills Envoy at once, without a drain or SIGTERM. nil means never.
	Now <-chan struct{}
}

func (d DrainConfig) withDefaults() (DrainConfig, error) {
	if d.Duration < 0 || d.MinDuration < 0 || d.MaxDuration < 0 || d.KillAfter < 0 {
		return d, errors.New("a duration of the drain is negative: use 0 or more")
	}
	if d.KillAfter == 0 {
		d.KillAfter = defaultKillAfter
	}
	if d.MaxDuration == 0 {
		d.MaxDuration = defaultMaxDuration
	}
	return d, nil
}

// Drain drains Envoy's listeners as configured and returns when the drain is over. Envoy keeps
// serving. There is only one drain: a concurrent call waits for the same drain, and a later call
// returns at once. If ctx is done, the wait ends but the drain continues.
func (p *Process) Drain(ctx context.Context) {
	if p.draining.Swap(true) {
		select {
		case <-p.drained:
		case <-ctx.Done():
		}
		return
	}
	defer close(p.drained)
	p.settle() // an Envoy that serves after this point is drained
	var ended <-chan struct{}
	if c := p.current.Load(); c != nil {
		ended = c.ended
	}
	p.drain(context.WithoutCancel(ctx), ended)
}

// Draining reports whether a drain has begun.
func (p *Process) Draining() bool { return p.draining.Load() }

// drain returns when the drain period is over, when Envoy has exited or when Drain.Now is closed.
func (p *Process) drain(ctx context.Context, ended <-chan struct{}) {
	d, log := p.cfg.Drain, p.cfg.Logger
	begin := time.Now()
	limit := d.Duration
	if d.ExitOnZero && p.cfg.Admin != nil {
		limit = max(d.MaxDuration, d.MinDuration)
	}
	// This deadline limits every wait below.
	ctx, cancel := context.WithDeadline(ctx, begin.Add(max(limit, drainCallTimeout)))
	defer cancel()
	log.Info("envoy is draining", "pid", p.PID(), "duration", limit)
	if p.cfg.Admin != nil {
		call, cancel := context.WithTimeout(ctx, drainCallTimeout)
		err := p.cfg.Admin.DrainListeners(call, d.InboundOnly)
		cancel()
		if err != nil {
			log.Warn("envoy's listeners could not be drained: connections are closed without notice", "err", err)
		}
	}
	if !d.ExitOnZero || p.cfg.Admin == nil {
		wait(limit-time.Since(begin), ended, d.Now)
		return
	}
	wait(d.MinDuration, ended, d.Now)
	failures, open := 0, uint64(0)
	for !closed(ended) && !closed(d.Now) {
		n, err := p.cfg.Admin.ActiveConnections(ctx, d.IgnorePorts...)
		if err == nil {
			failures, open = 0, n
		} else {
			failures++
		}
		left := limit - time.Since(begin)
		switch {
		case left <= 0:
			log.Warn("the drain time is over, but envoy still has open connections", "count", open, "duration", limit)
			return
		case failures == pollFailures:
			log.Warn("envoy's connections cannot be counted: ending the drain", "err", err)
			return
		case err == nil && open == 0:
			log.Info("envoy has no open connection left", "duration", time.Since(begin))
			return
		}
		wait(min(pollEvery, left), ended, d.Now)
	}
}

// drainAgain drains an Envoy that replaced the drained one.
func (p *Process) drainAgain(ctx context.Context, c *child) {
	if p.cfg.Admin == nil {
		return
	}
	for p.Ready(ctx) != nil {
		if wait(drainAgainEvery, c.ended, ctx.Done()); closed(c.ended) || ctx.Err() != nil {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, drainCallTimeout)
	defer cancel()
	if err := p.cfg.Admin.DrainListeners(ctx, p.cfg.Drain.InboundOnly); err != nil {
		p.cfg.Logger.Warn("envoy's listeners could not be drained: connections are closed without notice", "err", err)
		return
	}
	p.cfg.Logger.Info("envoy is draining, like the previous one", "pid", c.process.Pid)
}
