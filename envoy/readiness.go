// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
)

// readinessFilter selects everything that readiness depends on, so that one request answers it.
const readinessFilter = `^((cluster_manager\.cds|listener_manager\.lds)\.update_(success|rejected)|server\.state|listener_manager\.workers_started)$`

// The values of the gauge server.state.
const (
	stateLive            = 0
	stateDraining        = 1
	statePreInitializing = 2
	stateInitializing    = 3
)

// Readiness is what Envoy says of itself. Err turns it into an answer.
type Readiness struct {
	// CDSUpdated and LDSUpdated count the configurations accepted, CDSRejected and LDSRejected those refused.
	CDSUpdated, LDSUpdated, CDSRejected, LDSRejected uint64
	// State is Envoy's own state: live, draining, pre-initializing, initializing or unknown.
	State string
	// Live tells whether State is live.
	Live bool
	// WorkersStarted tells whether the worker threads accept connections.
	WorkersStarted bool
}

// Readiness asks Envoy once how far it is. The error says that it did not answer.
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

// Err returns nil when Envoy is ready to serve, and otherwise a sentence that says what it lacks.
func (r Readiness) Err() error {
	cds, lds := r.CDSUpdated > 0, r.LDSUpdated > 0
	switch {
	case !cds && r.CDSRejected > 0:
		return rejected("clusters (CDS)", r.CDSRejected)
	case !lds && r.LDSRejected > 0:
		return rejected("listeners (LDS)", r.LDSRejected)
	case !cds && !lds:
		return errors.New("envoy has received no configuration from the control plane yet: if this lasts, look whether the control plane can be reached")
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
