// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// readinessFilter selects all statistics that readiness depends on, so that one request is enough.
const readinessFilter = `^((cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected|time)|server\.(state|hot_restart_epoch)|listener_manager\.workers_started)$`

// deathNotice is how long Ready waits for Envoy's exit after its admin port has refused a
// connection.
const deathNotice = 100 * time.Millisecond

// Values of the server.state gauge.
const (
	stateLive            = 0
	stateDraining        = 1
	statePreInitializing = 2
	stateInitializing    = 3
)

// Readiness is the state that Envoy reports. Err evaluates it.
type Readiness struct {
	// CDSUpdated and LDSUpdated count accepted configurations; CDSRejected and LDSRejected count
	// rejected ones.
	CDSUpdated, LDSUpdated, CDSRejected, LDSRejected uint64
	// State is Envoy's own state: live, draining, pre-initializing, initializing or unknown.
	State string
	// Live reports whether State is live.
	Live bool
	// WorkersStarted reports whether the worker threads accept connections.
	WorkersStarted bool
	// Epoch is the number of hot restarts that preceded this Envoy.
	Epoch int
}

// Readiness queries Envoy's state once. It returns an error if Envoy does not respond.
func (a *Admin) Readiness(ctx context.Context) (Readiness, error) {
	stats, err := a.Stats(ctx, readinessFilter)
	if err != nil {
		return Readiness{}, err
	}
	r := Readiness{
		CDSUpdated:     stats["cluster_manager.cds.update_success"],
		CDSRejected:    stats["cluster_manager.cds.update_rejected"],
		LDSUpdated:     stats["listener_manager.lds.update_success"],
		LDSRejected:    stats["listener_manager.lds.update_rejected"],
		State:          "unknown",
		WorkersStarted: stats["listener_manager.workers_started"] == 1,
	}
	if r.Epoch = int(stats["server.hot_restart_epoch"]); r.Epoch > 0 {
		// Counters include those of the preceding Envoy; times do not.
		if stats["cluster_manager.cds.update_time"] == 0 {
			r.CDSUpdated = 0
		}
		if stats["listener_manager.lds.update_time"] == 0 {
			r.LDSUpdated = 0
		}
	}
	if state, known := stats["server.state"]; known {
		r.State = stateName(state)
		r.Live = state == stateLive
	}
	return r, nil
}

func stateName(state uint64) string {
	switch state {
	case stateLive:
		return "live"
	case stateDraining:
		return "draining"
	case statePreInitializing:
		return "pre-initializing"
	case stateInitializing:
		return "initializing"
	default:
		return "unknown"
	}
}

// Err returns nil if Envoy is ready to serve. Otherwise it returns an error that says what is
// missing.
func (r Readiness) Err() error {
	cds, lds := r.CDSUpdated > 0, r.LDSUpdated > 0
	switch {
	case !cds && r.CDSRejected > 0:
		return rejected("clusters (CDS)", r.CDSRejected)
	case !lds && r.LDSRejected > 0:
		return rejected("listeners (LDS)", r.LDSRejected)
	case !cds && !lds:
		return errors.New("envoy has received no configuration from the control plane yet: if this lasts, check whether the control plane can be reached")
	case !cds:
		return errors.New("envoy has received its listeners (LDS) but no clusters (CDS) from the control plane yet")
	case !lds:
		return errors.New("envoy has received its clusters (CDS) but no listeners (LDS) from the control plane yet")
	case !r.Live:
		return fmt.Errorf("envoy has its configuration but is not live: its state is %s", r.State)
	case !r.WorkersStarted:
		return errors.New("envoy is live but its worker threads have not started yet")
	}
	return nil
}

func rejected(what string, times uint64) error {
	return fmt.Errorf("envoy has rejected every configuration of its %s so far (%d): its log and the control plane's status name the resource and the reason", what, times)
}

// Ready returns nil if the running Envoy is ready, and otherwise an error that says why not. An
// Envoy that has exited is not ready. The state of an earlier Envoy does not count: the error for
// an Envoy that was restarted and has not been ready since is never a context.DeadlineExceeded.
// During a takeover, and after a failed one, Envoy keeps the state it had when the takeover began:
// ready.
func (p *Process) Ready(ctx context.Context) error {
	c := p.current.Load()
	if c == nil {
		return errors.New("envoy has not been started yet")
	}
	if c.held.Load() && !closed(c.ended) {
		return nil
	}
	if p.cfg.Admin == nil {
		return errors.New("envoy has no admin port to check its readiness with")
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.ended:
			cancel() // no process can respond any more
		case <-asking.Done():
		}
	}()
	state, err := p.cfg.Admin.Readiness(asking)
	if err != nil && ctx.Err() == nil && c.ready.Load() {
		// Envoy's connections close shortly before the process exits. Its exit explains the
		// failure.
		wait(deathNotice, c.ended, ctx.Done())
	}
	if err == nil {
		err = state.Err()
	}
	if err == nil && p.cfg.Configured != nil && !c.ready.Load() {
		err = p.cfg.Configured(c.process.Pid)
	}
	switch {
	case closed(c.ended) && c.crash != nil:
		return fmt.Errorf("envoy is down: %w", c.crash)
	case closed(c.ended):
		return fmt.Errorf("envoy is down: %w", c.err)
	case err == nil:
		c.ready.Store(true)
		return nil
	case c.previous != nil && !c.ready.Load():
		return fmt.Errorf("%w; it was restarted and is not ready yet: %s", c.previous, err)
	default:
		return err
	}
}
