// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/inject"
)

// InjectorConfig configures an Injector.
type InjectorConfig struct {
	// Current returns the injector in force, or nil before its configuration was read. It is called
	// for each request.
	Current    func() *inject.Injector
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil disables metrics
}

// Injector is the webhook that adds proxies to pods when they are created. It allows all other
// objects unchanged.
type Injector struct {
	front                           *front
	current                         func() *inject.Injector
	log                             *slog.Logger
	requests, done, failed, skipped prometheus.Counter
	time                            prometheus.Histogram
}

// NewInjector returns an Injector.
func NewInjector(cfg InjectorConfig) (*Injector, error) {
	if cfg.Current == nil {
		return nil, errors.New("webhook of injection: it needs an injector")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	w := &Injector{
		current: cfg.Current, log: cfg.Logger,
		requests: counter("sidecar_injection_requests_total", "Requests to the injection webhook."),
		done:     counter("sidecar_injection_success_total", "Requests to the injection webhook that were answered without an error."),
		failed:   counter("sidecar_injection_failure_total", "Requests to the injection webhook that could not be read, or whose pod was refused."),
		skipped:  counter("sidecar_injection_skip_total", "Pods that received no proxy because of labels, annotations or policy."),
		time: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sidecar_injection_time_seconds", Help: "Duration of requests to the injection webhook.", Buckets: []float64{.001, .01, .1, 1, 3, 5, 10, 20, 30, 60},
		}),
	}
	w.front = newFront(cfg.Logger, w.failed, w.answer)
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{w.requests, w.done, w.failed, w.skipped, w.time} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register the metrics of injection: %w", err)
			}
		}
	}
	return w, nil
}

// ServeHTTP answers one AdmissionReview, in the version of the request.
func (w *Injector) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.requests.Inc()
	start := time.Now()
	defer func() { w.time.Observe(time.Since(start).Seconds()) }()
	w.front.ServeHTTP(rw, r)
}

// answer adds a proxy to one pod.
func (w *Injector) answer(_ context.Context, path string, r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	out := &admissionv1.AdmissionResponse{Allowed: true}
	if r.Kind.Group != "" || r.Kind.Kind != "Pod" || r.SubResource != "" || len(r.Object.Raw) == 0 {
		w.done.Inc()
		return out, nil
	}
	patch, warnings, err := w.inject(path, r)
	if err != nil {
		w.failed.Inc()
		w.log.Warn("a pod is refused: no proxy can be added", "namespace", r.Namespace, "name", r.Name, "err", err)
		out.Allowed = false
		out.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: "no proxy can be added: " + err.Error(),
		}
		return out, nil
	}
	w.done.Inc()
	out.Warnings = warnings[:min(len(warnings), mostWarnings)]
	if patch != nil {
		kind := admissionv1.PatchTypeJSONPatch
		out.Patch, out.PatchType = patch, &kind
	}
	return out, nil
}

// inject returns the patch of a pod, nil if it receives no proxy.
func (w *Injector) inject(path string, r *admissionv1.AdmissionRequest) (patch []byte, warnings []string, err error) {
	env, err := inject.PathVariables(path)
	if err != nil {
		return nil, nil, fmt.Errorf("the URL of the webhook: %w", err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(r.Object.Raw, pod); err != nil {
		return nil, nil, fmt.Errorf("the object is not a Pod: %w", err)
	}
	var object map[string]any
	if err := json.Unmarshal(r.Object.Raw, &object); err != nil {
		return nil, nil, fmt.Errorf("the object is not a Pod: %w", err)
	}
	namespace := r.Namespace
	if namespace == "" {
		namespace = pod.Namespace
	}
	injector := w.current()
	if injector == nil {
		return nil, nil, errors.New("the control plane has not read a valid configuration of the injector yet; its log has the reason")
	}
	result, err := injector.Inject(inject.Request{Pod: pod, Namespace: namespace, Env: env})
	if err != nil {
		return nil, nil, err
	}
	if result.Skipped != "" {
		w.skipped.Inc()
		w.log.Debug("a pod receives no proxy", "namespace", namespace, "name", pod.Name+pod.GenerateName, "reason", result.Skipped)
		return nil, result.Warnings, nil
	}
	patch, _, err = inject.Patch(object, pod, result.Pod)
	return patch, result.Warnings, err
}
