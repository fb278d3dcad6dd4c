// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

const (
	// maxBody is the limit of Istio: an old and a new object of up to 3 MiB each.
	maxBody = 6 << 20
	// mostWarnings is the maximum number of warnings in a response; Kubernetes truncates further.
	mostWarnings = 32
	// Each request may use freeBody bytes; larger requests share moreBodies. Callers are not
	// authenticated: without a limit, each connection could occupy maxBody bytes.
	freeBody   = 64 << 10
	moreBodies = 32 << 20
	// mostAtOnce is the maximum number of objects that are validated at the same time. Requests of
	// more than largeBody bytes are validated one at a time: decoding an object can need a hundred
	// times its size. A caller that waits longer than waitTime receives 503 and can retry.
	mostAtOnce = 4
	largeBody  = 256 << 10
	waitTime   = 5 * time.Second
	// maxObject is the limit of API servers plus room for what they add.
	maxObject = 3<<20 + 64<<10
)

// Config configures a Validator.
type Config struct {
	Logger     *slog.Logger          // nil means slog.Default()
	Registerer prometheus.Registerer // nil disables metrics
}

// Validator is the webhook that validates objects when they are created and updated. It allows all
// other operations and objects of unknown kinds.
type Validator struct {
	log            *slog.Logger
	passed, failed *prometheus.CounterVec
	faults         prometheus.Counter
	// slots and large contain a token for each small and large object that is being validated.
	slots, large chan struct{}
	// bodies is the part of moreBodies that is free.
	bodies *semaphore.Weighted
}

// NewValidator returns a Validator.
func NewValidator(cfg Config) (*Validator, error) {
	labels := []string{"group", "version", "resource"}
	v := &Validator{
		log: cfg.Logger, slots: make(chan struct{}, mostAtOnce), large: make(chan struct{}, 1), bodies: semaphore.NewWeighted(moreBodies),
		passed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "galley_validation_passed", Help: "Objects that the validating webhook was asked about and found good.",
		}, labels),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "galley_validation_failed", Help: "Objects that the validating webhook was asked about and refused.",
		}, labels),
		faults: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "galley_validation_http_error", Help: "Questions to the validating webhook that could not be read.",
		}),
	}
	if v.log == nil {
		v.log = slog.Default()
	}
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{v.passed, v.failed, v.faults} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register the metrics of the webhook: %w", err)
			}
		}
	}
	return v, nil
}

// review contains the fields that v1 and v1beta1 share; their JSON is the same.
type review struct {
	metav1.TypeMeta `json:",inline"`
	Request         *admissionv1.AdmissionRequest  `json:"request,omitempty"`
	Response        *admissionv1.AdmissionResponse `json:"response,omitempty"`
}

// ServeHTTP answers one AdmissionReview, in the version of the request.
func (v *Validator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, release, status, err := v.read(w, r)
	defer release()
	if err != nil {
		v.refuse(w, r, status, err)
		return
	}
	wait, cancel := context.WithTimeout(r.Context(), waitTime)
	defer cancel()
	slots := v.slots
	if len(body) > largeBody {
		slots = v.large
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-wait.Done():
		v.refuse(w, r, http.StatusServiceUnavailable, errBusy)
		return
	}
	in, err := parse(body)
	if err != nil {
		v.refuse(w, r, http.StatusBadRequest, err)
		return
	}
	response, err := v.answer(r.Context(), in.Request)
	if err != nil { // the caller has disconnected
		v.refuse(w, r, http.StatusServiceUnavailable, err)
		return
	}
	out := review{TypeMeta: in.TypeMeta, Response: response}
	out.Response.UID = in.Request.UID
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		v.log.Debug("an answer of the webhook was not taken", "address", r.RemoteAddr, "err", err)
	}
}

// errBusy is returned while too many requests are in progress.
var errBusy = errors.New("other objects are being checked: try again")

// refuse responds to a request that is not validated.
func (v *Validator) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	v.faults.Inc()
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "1")
	} else {
		v.log.Warn("a question to the webhook cannot be read", "address", r.RemoteAddr, "err", err)
	}
	http.Error(w, err.Error(), status)
}

// read returns the body of a request, or the HTTP status for the error. The caller must call
// release, which is never nil, when it no longer needs the body.
func (v *Validator) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), status int, err error) {
	release = func() {}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, release, http.StatusMethodNotAllowed, errors.New("send an AdmissionReview with POST")
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, release, http.StatusUnsupportedMediaType, fmt.Errorf("the content type is %q, it has to be application/json", r.Header.Get("Content-Type"))
	}
	from := &bounded{r: http.MaxBytesReader(w, r.Body, maxBody), free: freeBody, more: v.bodies}
	body, err = io.ReadAll(from)
	release = from.release
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errBusy):
		return nil, release, http.StatusServiceUnavailable, err
	case errors.As(err, &tooLarge):
		return nil, release, http.StatusBadRequest, fmt.Errorf("the body is larger than %d MiB", maxBody>>20)
	case err != nil:
		return nil, release, http.StatusBadRequest, fmt.Errorf("read the body: %w", err)
	case len(body) == 0:
		return nil, release, http.StatusBadRequest, errors.New("the body is empty: send an AdmissionReview")
	}
	return body, release, http.StatusOK, nil
}

// bounded is a reader that needs no budget for the first bytes and acquires it for the rest.
type bounded struct {
	r    io.Reader
	free int64
	more *semaphore.Weighted
	held int64 // bytes acquired from more
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.free > 0 {
		n, err := b.r.Read(p[:min(int64(len(p)), b.free)])
		b.free -= int64(n)
		return n, err
	}
	n, err := b.r.Read(p[:min(len(p), freeBody)])
	if n > 0 && !b.more.TryAcquire(int64(n)) {
		return 0, errBusy
	}
	b.held += int64(n)
	return n, err
}

// release returns the acquired budget.
func (b *bounded) release() {
	b.more.Release(b.held)
	b.held = 0
}

// parse parses a request.
func parse(body []byte) (in review, err error) {
	if err := json.Unmarshal(body, &in); err != nil {
		return in, fmt.Errorf("the body is no AdmissionReview: %w", err)
	}
	versions := []string{admissionv1.SchemeGroupVersion.String(), admissionv1beta1.SchemeGroupVersion.String()}
	switch {
	case in.Kind != "AdmissionReview" || !slices.Contains(versions, in.APIVersion):
		return in, fmt.Errorf("the body is %s %s, it has to be an AdmissionReview of %s", in.APIVersion, in.Kind, strings.Join(versions, " or "))
	case in.Request == nil:
		return in, errors.New("the AdmissionReview has no request")
	case len(in.Request.Object.Raw) > maxObject:
		return in, fmt.Errorf("the object has %d bytes; API servers accept 3 MiB", len(in.Request.Object.Raw))
	}
	return in, nil
}

// answer validates one object. It returns an error if ctx is done first.
func (v *Validator) answer(ctx context.Context, r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	sch, known := schema.For(r.Kind.Group+"/"+r.Kind.Version, r.Kind.Kind)
	written := r.Operation == admissionv1.Create || r.Operation == admissionv1.Update
	if !written || r.SubResource != "" || !known || sch.Group != r.Kind.Group {
		return &admissionv1.AdmissionResponse{Allowed: true}, nil
	}
	if leaving(r.Object.Raw) {
		return &admissionv1.AdmissionResponse{Allowed: true}, nil
	}
	_, problems, err := codec.DecodeWritten(ctx, "object", r.Object.Raw, r.Namespace)
	if err != nil {
		return nil, fmt.Errorf("check the object: %w", err)
	}
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
