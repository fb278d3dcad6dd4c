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
)

const (
	// maxBody is the limit of Istio: an old and a new object of up to 3 MiB each.
	maxBody = 6 << 20
	// Each request may use freeBody bytes; larger requests share moreBodies. Callers are not
	// authenticated: without a limit, each connection could occupy maxBody bytes.
	freeBody   = 64 << 10
	moreBodies = 32 << 20
	// mostAtOnce is the maximum number of requests that are answered at the same time. Those of more
	// than largeBody bytes are answered one at a time: decoding an object can need a hundred times
	// its size. A caller that waits longer than waitTime receives 503 and can retry.
	mostAtOnce = 4
	largeBody  = 256 << 10
	waitTime   = 5 * time.Second
	// maxObject is the limit of API servers plus room for what they add.
	maxObject = 3<<20 + 64<<10
)

// front reads requests and writes the responses of one webhook.
type front struct {
	log    *slog.Logger
	faults prometheus.Counter // requests that cannot be read
	// answer answers a request to a path. It returns an error if ctx is done first.
	answer func(ctx context.Context, path string, r *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)
	// slots and large contain a token for each small and large request that is being answered.
	slots, large chan struct{}
	// bodies is the part of moreBodies that is free.
	bodies *semaphore.Weighted
}

func newFront(log *slog.Logger, faults prometheus.Counter, answer func(context.Context, string, *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)) *front {
	if log == nil {
		log = slog.Default()
	}
	return &front{
		log: log, faults: faults, answer: answer, slots: make(chan struct{}, mostAtOnce), large: make(chan struct{}, 1), bodies: semaphore.NewWeighted(moreBodies),
	}
}

// review contains the fields that v1 and v1beta1 share; their JSON is the same.
type review struct {
	metav1.TypeMeta `json:",inline"`
	Request         *admissionv1.AdmissionRequest  `json:"request,omitempty"`
	Response        *admissionv1.AdmissionResponse `json:"response,omitempty"`
}

// ServeHTTP answers one AdmissionReview, in the version of the request.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, release, status, err := f.read(w, r)
	defer release()
	if err != nil {
		f.refuse(w, r, status, err)
		return
	}
	wait, cancel := context.WithTimeout(r.Context(), waitTime)
	defer cancel()
	slots := f.slots
	if len(body) > largeBody {
		slots = f.large
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-wait.Done():
		f.refuse(w, r, http.StatusServiceUnavailable, errBusy)
		return
	}
	in, err := parse(body)
	if err != nil {
		f.refuse(w, r, http.StatusBadRequest, err)
		return
	}
	response, err := f.answer(r.Context(), r.URL.Path, in.Request)
	if err != nil { // the caller has disconnected
		f.refuse(w, r, http.StatusServiceUnavailable, err)
		return
	}
	out := review{TypeMeta: in.TypeMeta, Response: response}
	out.Response.UID = in.Request.UID
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		f.log.Debug("the caller of the webhook did not read the response", "address", r.RemoteAddr, "err", err)
	}
}

// errBusy is returned while too many requests are in progress.
var errBusy = errors.New("too many objects are being checked: retry")

// refuse responds to a request that is not validated.
func (f *front) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	f.faults.Inc()
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "1")
	} else {
		f.log.Warn("a request to the webhook cannot be read", "address", r.RemoteAddr, "err", err)
	}
	http.Error(w, err.Error(), status)
}

// read returns the body of a request, or the HTTP status for the error. The caller must call
// release, which is never nil, when it no longer needs the body.
func (f *front) read(w http.ResponseWriter, r *http.Request) (body []byte, release func(), status int, err error) {
	release = func() {}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, release, http.StatusMethodNotAllowed, errors.New("send an AdmissionReview with POST")
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, release, http.StatusUnsupportedMediaType, fmt.Errorf("the content type is %q; it must be application/json", r.Header.Get("Content-Type"))
	}
	from := &bounded{r: http.MaxBytesReader(w, r.Body, maxBody), free: freeBody, more: f.bodies}
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
		return in, fmt.Errorf("the body is not an AdmissionReview: %w", err)
	}
	versions := []string{admissionv1.SchemeGroupVersion.String(), admissionv1beta1.SchemeGroupVersion.String()}
	switch {
	case in.Kind != "AdmissionReview" || !slices.Contains(versions, in.APIVersion):
		return in, fmt.Errorf("the body is %s %s; it must be an AdmissionReview of %s", in.APIVersion, in.Kind, strings.Join(versions, " or "))
	case in.Request == nil:
		return in, errors.New("the AdmissionReview has no request")
	case len(in.Request.Object.Raw) > maxObject:
		return in, fmt.Errorf("the object has %d bytes; API servers accept 3 MiB", len(in.Request.Object.Raw))
	}
	return in, nil
}
