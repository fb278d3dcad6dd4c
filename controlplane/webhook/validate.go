// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
)

// Config configures a Validator.
type Config struct {
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil disables metrics
	Patches    patch.Limits          // what EnvoyFilters may contain
}

// mostWarnings is the maximum number of warnings in a response; Kubernetes truncates further.
const mostWarnings = 32

// Validator is the webhook that validates objects when they are created and updated. It allows all
// other operations and objects of unknown kinds.
type Validator struct {
	patches        patch.Limits
	front          *front
	passed, failed *prometheus.CounterVec
}

// NewValidator returns a Validator.
func NewValidator(cfg Config) (*Validator, error) {
	labels := []string{"group", "version", "resource"}
	v := &Validator{
		patches: cfg.Patches,
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "galley_validation_passed", Help: "Objects that the validating webhook accepted.",
		}, labels),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "galley_validation_failed", Help: "Objects that the validating webhook refused.",
		}, labels),
	}
	faults := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "galley_validation_http_error", Help: "Requests to the validating webhook that could not be read.",
	})
	v.front = newFront(cfg.Logger, faults, v.answer)
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{v.passed, v.failed, faults} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register the metrics of the webhook: %w", err)
			}
		}
	}
	return v, nil
}

// ServeHTTP answers one AdmissionReview, in the version of the request.
func (v *Validator) ServeHTTP(w http.ResponseWriter, r *http.Request) { v.front.ServeHTTP(w, r) }

// answer validates one object. It returns an error if ctx is done first.
func (v *Validator) answer(ctx context.Context, _ string, r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	sch, known := schema.For(r.Kind.Group+"/"+r.Kind.Version, r.Kind.Kind)
	written := r.Operation == admissionv1.Create || r.Operation == admissionv1.Update
	if !written || r.SubResource != "" || !known || sch.Group != r.Kind.Group {
		return &admissionv1.AdmissionResponse{Allowed: true}, nil
	}
	if leaving(r.Object.Raw) {
		return &admissionv1.AdmissionResponse{Allowed: true}, nil
	}
	objects, problems, err := codec.DecodeWritten(ctx, "object", r.Object.Raw, r.Namespace)
	if err != nil {
		return nil, fmt.Errorf("check the object: %w", err)
	}
	problems = append(problems, v.ofPatches(objects, problems)...)
	out := &admissionv1.AdmissionResponse{Allowed: true}
	var causes []metav1.StatusCause
	for _, p := range problems {
		if !p.Warning {
			causes = append(causes, cause(p))
		} else if len(out.Warnings) < mostWarnings {
			out.Warnings = append(out.Warnings, p.Reason)
		}
	}
	if len(causes) == 0 {
		v.passed.WithLabelValues(r.Resource.Group, r.Resource.Version, r.Resource.Resource).Inc()
		return out, nil
	}
	v.failed.WithLabelValues(r.Resource.Group, r.Resource.Version, r.Resource.Resource).Inc()
	texts := make([]string, len(causes))
	for i, c := range causes {
		texts[i] = c.Message
	}
	out.Allowed = false
	out.Result = &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: sch.Name + " is not valid: " + strings.Join(texts, "; "),
		Details: &metav1.StatusDetails{Group: sch.Group, Kind: sch.Name, Name: r.Name, Causes: causes},
	}
	return out, nil
}

// ofPatches returns warnings about the patches of EnvoyFilters, and the scripts of TrafficExtensions,
// that will not be applied, as Envoy would refuse them or an operator has forbidden them. They are no
// errors, because the other patches of an object are applied, and what a patch is merged into is not
// known here.
func (v *Validator) ofPatches(objects []*model.Config, known []model.Problem) (out []model.Problem) {
	for _, c := range objects {
		if x, ok := c.Spec.(*extensionsv1alpha1.TrafficExtension); ok && x.GetLua() != nil && v.patches.NoLua {
			out = append(out, model.Problem{Object: c.Key, Source: c.Source, Reason: "spec.lua: " + patch.LuaOff, Warning: true})
		}
		spec, ok := c.Spec.(*networkingv1alpha3.EnvoyFilter)
		if !ok {
			continue
		}
		_, problems := patch.Parse(c, spec, v.patches, nil)
		for _, p := range problems {
			at, _, _ := strings.Cut(p.Reason, "]")
			if !slices.ContainsFunc(known, func(k model.Problem) bool { return strings.HasPrefix(k.Reason, at+"]") }) {
				p.Warning = true
				out = append(out, p)
			}
		}
	}
	return out
}

// leaving reports whether an object is being deleted. Such an object is not validated, because its
// finalizers must be removable.
func leaving(object []byte) bool {
	var o metav1.PartialObjectMetadata
	return json.Unmarshal(object, &o) == nil && o.DeletionTimestamp != nil
}

// cause returns the status cause of a problem. If the reason starts with a field path, it sets the
// field.
func cause(p model.Problem) metav1.StatusCause {
	c := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: p.Reason}
	if field, _, ok := strings.Cut(p.Reason, " "); ok && (strings.HasPrefix(field, "spec") || strings.HasPrefix(field, "metadata")) {
		c.Field = field
	}
	return c
}
