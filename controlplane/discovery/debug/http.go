// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

// Answers over HTTP are bounded: so many are made at a time, others wait so long
// for their turn, at most maxOpen of a kind of callers, and none is larger.
const (
	atOnce   = 2
	patience = 10 * time.Second
	maxOpen  = 128
	maxBytes = 64 << 20
	maxForm  = 128 << 10
	// maxWide is the limit of a form with the records of a replay, or the objects of a change, and
	// maxForms that of all forms at a time.
	maxWide  = 8 << 20
	maxForms = 32 << 20
	// retryAfter is when a caller without a turn may ask again.
	retryAfter = 2 * time.Second
	// pushEvery is how often everything is sent again because somebody asks.
	pushEvery = time.Second
)

// wideForm are the names of answers that read a large form. It is never written to.
var wideForm = map[string]bool{"replay": true, "whatif": true, "analyze": true}

// Handler answers questions over HTTP, under /debug; the names are those of the
// questions on streams. It serves peers with a loopback address, which see all of the
// mesh, and callers that Config.Authenticator knows, who see what they would see on a
// stream. The index at /debug is for everybody, as with Istio's control plane.
// Current returns the server that answers.
func Handler(current func() *Server) http.Handler {
	h := &handler{
		current: current, open: map[bool]chan struct{}{true: make(chan struct{}, maxOpen), false: make(chan struct{}, maxOpen)},
		turns: make(chan struct{}, atOnce), forms: semaphore.NewWeighted(maxForms), shared: newShared(), pushes: rate.NewLimiter(rate.Every(pushEvery), 1),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug", index)
	mux.HandleFunc("GET /debug/{$}", index)
	mux.HandleFunc("GET /debug/{name}", h.serve)
	// A request may contain a token, which does not belong into a URL.
	mux.HandleFunc("POST /debug/{name}", func(w http.ResponseWriter, r *http.Request) {
		if name := r.PathValue("name"); name != "request" && !wideForm[name] {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only /debug/request, /debug/replay, /debug/whatif and /debug/analyze read a form", http.StatusMethodNotAllowed)
			return
		}
		h.serve(w, r)
	})
	return mux
}

// index lists the answers.
func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	all := answers()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, _ = fmt.Fprintf(w, "/debug/%-20s %s\n", name, all[name].about) // a client that is gone needs no answer
	}
	_, _ = fmt.Fprint(w, "\n?pretty indents a response.\n") // as above
}

type handler struct {
	current func() *Server
	// open has a token for each request of callers that see all of the mesh, and apart from these for each
	// of others. turns has one for each request that is being answered.
	open   map[bool]chan struct{}
	turns  chan struct{}
	forms  *semaphore.Weighted // the free part of maxForms
	shared *shared
	pushes *rate.Limiter
}

// refusal is an answer that is none.
type refusal struct {
	code int
	text string
	busy bool // a later request may get its turn
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	a, no := h.answer(r)
	if no == nil {
		a.send(w, r)
		return
	}
	if no.code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if no.busy {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	}
	http.Error(w, no.text, no.code)
}

// busy refuses a request that gets no turn.
func busy(what string) *refusal {
	return &refusal{code: http.StatusServiceUnavailable, text: what + ": retry in " + retryAfter.String(), busy: true}
}

func (h *handler) answer(r *http.Request) (reply, *refusal) {
	if err := localonly.Foreign(r); err != nil {
		return reply{}, &refusal{code: http.StatusForbidden, text: err.Error()}
	}
	local := localonly.Request(r)
	var caller *authn.Caller
	if !local {
		var no *refusal
		if caller, no = h.authenticate(r); no != nil {
			return reply{}, no
		}
	}
	server := h.current()
	mesh, _ := server.source.Snapshot()
	if mesh == nil {
		return reply{}, &refusal{code: http.StatusServiceUnavailable, text: "configuration is still loading: there is no snapshot yet"}
	}
	who := asker{name: "a caller of this machine", all: true}
	if caller != nil {
		who = askerOf(mesh, caller)
	}
	select {
	case h.open[who.all] <- struct{}{}:
		defer func() { <-h.open[who.all] }()
	default:
		return reply{}, busy(fmt.Sprintf("%d queries are being answered or wait, the most that may", maxOpen))
	}
	release, no := h.readForm(r, who)
	if no != nil {
		return reply{}, no
	}
	defer release()
	if r.URL.Query().Get("push") == "true" && !h.pushes.Allow() {
		return reply{}, &refusal{code: http.StatusTooManyRequests, text: fmt.Sprintf("everything is sent again at most every %s; retry then", pushEvery)}
	}
	return h.make(server, who, r)
}

// make makes an answer in its turn, or returns one that others share.
func (h *handler) make(server *Server, who asker, r *http.Request) (reply, *refusal) {
	arrived := time.Now()
	wait, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	zipped, kept := takesZipped(r.Header), h.shared.of(r, who)
	if kept != nil {
		if no := turn(wait, kept.turn); no != nil {
			return reply{}, no
		}
		defer func() { <-kept.turn }()
		if a, ok := kept.fits(arrived.Add(-accepted(r.Header)), zipped); ok {
			return a, nil
		}
	}
	if no := turn(wait, h.turns); no != nil {
		return reply{}, no
	}
	defer func() { <-h.turns }()
	began := time.Now()
	mesh, _ := server.source.Snapshot() // after began
	body, no := server.answerHTTP(mesh, who, r)
	if no != nil {
		return reply{}, no
	}
	return kept.keep(body, began, zipped), nil
}

// turn waits for a place in turns.
func turn(wait context.Context, turns chan<- struct{}) *refusal {
	select {
	case turns <- struct{}{}:
		return nil
	case <-wait.Done():
		if errors.Is(wait.Err(), context.Canceled) {
			return &refusal{code: http.StatusServiceUnavailable, text: errEnded.Error()}
		}
		return busy("too many concurrent queries")
	}
}

// readForm reads the form of a request. The caller calls release when it does not need the form any more.
func (h *handler) readForm(r *http.Request, who asker) (release func(), _ *refusal) {
	if r.Method != http.MethodPost {
		return func() {}, nil
	}
	limit := int64(maxForm)
	if wideForm[r.PathValue("name")] && who.all {
		limit = maxWide
	}
	size := limit
	if r.ContentLength >= 0 {
		size = min(limit, r.ContentLength)
	}
	wait, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if h.forms.Acquire(wait, size) != nil {
		return nil, busy("too many concurrent queries with large forms")
	}
	r.Body = http.MaxBytesReader(nil, r.Body, limit)
	if err := r.ParseForm(); err != nil {
		h.forms.Release(size)
		return nil, &refusal{code: http.StatusBadRequest, text: "the form cannot be read, or has more than " + strconv.FormatInt(limit, 10) + " bytes"}
	}
	return func() { h.forms.Release(size) }, nil
}

// answerHTTP answers a question.
func (s *Server) answerHTTP(mesh *snapshot.Mesh, who asker, r *http.Request) ([]byte, *refusal) {
	query := r.URL.Query()
	if r.Method == http.MethodPost {
		query = r.PostForm
	}
	d := s.debugger(mesh, query, who)
	d.ended = r.Context().Done()
	answer, err := d.ask(r.PathValue("name"))
	if err == nil {
		err = answer.fillJSON()
	}
	var body bytes.Buffer
	if err == nil {
		err = json.NewEncoder(&body).Encode(answer.json)
	}
	switch {
	case errors.Is(err, errEnded):
		return nil, &refusal{code: http.StatusServiceUnavailable, text: err.Error()}
	case errors.Is(err, errForbidden):
		return nil, &refusal{code: http.StatusForbidden, text: err.Error()}
	case errors.Is(err, errUnknown):
		return nil, &refusal{code: http.StatusNotFound, text: err.Error()}
	case err != nil:
		return nil, &refusal{code: http.StatusBadRequest, text: err.Error()}
	case body.Len() > maxBytes:
		return nil, &refusal{code: http.StatusInsufficientStorage, text: fmt.Sprintf("the response has %d bytes; at most %d are returned: query one proxy or one kind", body.Len(), maxBytes)}
	}
	if !r.URL.Query().Has("pretty") {
		return body.Bytes(), nil
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, body.Bytes(), "", "  "); err != nil {
		return nil, &refusal{code: http.StatusInternalServerError, text: err.Error()}
	}
	return pretty.Bytes(), nil
}

// authenticate tells who asks, by what the Authenticator reads of gRPC calls: the
// metadata, and the certificate of the connection.
func (h *handler) authenticate(r *http.Request) (*authn.Caller, *refusal) {
	auth := h.current().cfg.Authenticator
	if auth == nil {
		return nil, &refusal{code: http.StatusUnauthorized, text: "only requests from this machine are answered: no method of authentication is configured"}
	}
	md := metadata.MD{}
	for _, name := range []string{"authorization", "clusterid"} {
		if values := r.Header.Values(name); len(values) > 0 {
			md.Set(name, values...)
		}
	}
	p := &grpcpeer.Peer{}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	}
	caller, err := auth.Authenticate(grpcpeer.NewContext(metadata.NewIncomingContext(r.Context(), md), p))
	switch {
	case errors.Is(err, authn.ErrUnavailable):
		return nil, &refusal{code: http.StatusServiceUnavailable, text: err.Error()}
	case err != nil:
		return nil, &refusal{code: http.StatusUnauthorized, text: err.Error()}
	}
	return caller, nil
}
