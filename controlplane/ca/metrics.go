// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// authorityMetrics are the metrics of roots and rotations.
type authorityMetrics struct {
	rootExpiry, chainExpiry, nextStep, roots, rejected prometheus.Gauge
	phase                                              *prometheus.GaugeVec
	steps, reloads                                     *prometheus.CounterVec
}

func newAuthorityMetrics(reg prometheus.Registerer) (*authorityMetrics, error) {
	m := &authorityMetrics{
		rootExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "citadel_server_root_cert_expiry_timestamp",
			Help: "Time at which the root certificate that signs expires, in seconds since 1970.",
		}),
		chainExpiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "citadel_server_cert_chain_expiry_timestamp",
			Help: "Time at which the first certificate between leaf and root, including the root, expires, in seconds since 1970.",
		}),
		nextStep: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_ca_rotation_switch_timestamp",
			Help: "Time at which the root that was added begins to sign, in seconds since 1970; 0 if there is none.",
		}),
		roots: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_ca_trusted_roots",
			Help: "Number of roots that are distributed.",
		}),
		rejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_ca_plugged_rejected",
			Help: "1 while the plugged-in files are rejected and the last valid ones are in force.",
		}),
		phase: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_ca_rotation_phase",
			Help: "1 for the current phase of the replacement of the root: steady, add, switch.",
		}, []string{"phase"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_ca_rotation_steps_total",
			Help: "Number of steps of root replacements by this replica: add, switch, remove.",
		}, []string{"step"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_ca_plugged_reloads_total",
			Help: "Number of changes of the plugged-in files, by result: applied, rejected.",
		}, []string{"result"}),
	}
	for _, s := range []string{stepAdd, stepSwitch, stepRemove} {
		m.steps.WithLabelValues(s)
	}
	for _, r := range []string{"applied", "rejected"} {
		m.reloads.WithLabelValues(r)
	}
	return m, register(reg, m.rootExpiry, m.chainExpiry, m.nextStep, m.roots, m.rejected, m.phase, m.steps, m.reloads)
}

// show sets the gauges from a state.
func (m *authorityMetrics) show(s *state) {
	first := s.signer.roots[0].NotAfter
	for _, r := range s.signer.roots[1:] {
		if r.NotAfter.Before(first) {
			first = r.NotAfter
		}
	}
	m.rootExpiry.Set(float64(first.Unix()))
	m.chainExpiry.Set(float64(s.signer.notAfter.Unix()))
	m.nextStep.Set(0)
	if s.next != nil {
		m.nextStep.Set(float64(s.switchAt.Unix()))
	}
	m.roots.Set(float64(len(s.bundle)))
	for _, phase := range []string{phaseSteady, phaseAdd, phaseSwitch} {
		is := 0.0
		if phase == s.phase {
			is = 1
		}
		m.phase.WithLabelValues(phase).Set(is)
	}
}

// serviceMetrics are the metrics of certificate requests.
type serviceMetrics struct {
	requests, issued, unauthenticated, parsing prometheus.Counter
	errors, refused                            *prometheus.CounterVec
	pending                                    prometheus.Gauge
}

func newServiceMetrics(reg prometheus.Registerer) (*serviceMetrics, error) {
	m := &serviceMetrics{
		requests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "citadel_server_csr_count", Help: "Number of certificate requests that were received.",
		}),
		issued: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "citadel_server_success_cert_issuance_count", Help: "Number of certificates that were issued.",
		}),
		unauthenticated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "citadel_server_authentication_failure_count", Help: "Number of callers that could not be authenticated.",
		}),
		parsing: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "citadel_server_csr_parsing_err_count", Help: "Number of certificate requests that were refused because of their content.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "citadel_server_csr_sign_err_count", Help: "Number of certificate requests that could not be signed, by reason.",
		}, []string{"error"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_ca_refused_total",
			Help: "Number of certificate requests rejected with a request to retry later: too many from one caller, too many for one identity, or the queue is full.",
		}, []string{"reason"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_ca_pending_requests", Help: "Number of certificate requests in the queue or being signed.",
		}),
	}
	for _, reason := range []string{refusedCaller, refusedIdentity, refusedQueue} {
		m.refused.WithLabelValues(reason)
	}
	return m, register(reg, m.requests, m.issued, m.unauthenticated, m.parsing, m.errors, m.refused, m.pending)
}

func register(reg prometheus.Registerer, collectors ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of the certificate authority: %w", err)
		}
	}
	return nil
}
