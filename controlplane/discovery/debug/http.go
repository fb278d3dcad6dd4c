// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/internal/localonly"
)

// Answers over HTTP are bounded: so many are made at a time, others wait so long
// for their turn, and none is larger.
const (
	atOnce   = 2
	patience = 10 * time.Second
	maxBytes = 64 << 20
	maxForm  = 128 << 10
	// maxWide is the limit of a form with the records of a replay, or the objects of a change.
	maxWide = 8 << 20
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
	h := &handler{current: current, turns: make(chan struct{}, atOnce), pushes: rate.NewLimiter(rate.Every(pushEvery), 1)}
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
	turns   chan struct{}
	pushes  *rate.Limiter
}

// refusal is an answer that is none.
type refusal struct {
	code int
	text string
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) {
	body, no := h.answer(r)
	if no != nil {
		if no.code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, no.text, no.code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // a client that is gone needs no answer
}

func (h *handler) answer(r *http.Request) ([]byte, *refusal) {
	if err := localonly.Foreign(r); err != nil {
		return nil, &refusal{http.StatusForbidden, err.Error()}
	}
	local := localonly.Request(r)
	var caller *authn.Caller
	if !local {
		var no *refusal
		if caller, no = h.authenticate(r); no != nil {
			return nil, no
		}
	}
	server := h.current()
	mesh, _ := server.source.Snapshot()
	if mesh == nil {
		return nil, &refusal{http.StatusServiceUnavailable, "configuration is still loading: there is no snapshot yet"}
	}
	if r.Method == http.MethodPost {
		limit := int64(maxForm)
		if wideForm[r.PathValue("name")] && (caller == nil || askerOf(mesh, caller).all) {
			limit = maxWide
		}
		r.Body = http.MaxBytesReader(nil, r.Body, limit)
		if err := r.ParseForm(); err != nil {
			return nil, &refusal{http.StatusBadRequest, "the form cannot be read, or has more than " + strconv.FormatInt(limit, 10) + " bytes"}
		}
	}
	if r.URL.Query().Get("push") == "true" && !h.pushes.Allow() {
		return nil, &refusal{http.StatusTooManyRequests, fmt.Sprintf("everything is sent again at most every %s; retry then", pushEvery)}
	}
	patience := time.NewTimer(patience)
	defer patience.Stop()
	select {
	case h.turns <- struct{}{}:
		defer func() { <-h.turns }()
	case <-patience.C:
		return nil, &refusal{http.StatusServiceUnavailable, "too many concurrent queries; retry in a moment"}
	case <-r.Context().Done():
		return nil, &refusal{http.StatusServiceUnavailable, errEnded.Error()}
	}
	return server.answerHTTP(mesh, caller, r)
}

// answerHTTP answers a question of a caller; nil is one who sees all.
func (s *Server) answerHTTP(mesh *snapshot.Mesh, caller *authn.Caller, r *http.Request) ([]byte, *refusal) {
	who := asker{name: "a caller of this machine", all: true}
	if caller != nil {
		who = askerOf(mesh, caller)
	}
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
		return nil, &refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, errForbidden):
		return nil, &refusal{http.StatusForbidden, err.Error()}
	case errors.Is(err, errUnknown):
		return nil, &refusal{http.StatusNotFound, err.Error()}
	case err != nil:
		return nil, &refusal{http.StatusBadRequest, err.Error()}
	case body.Len() > maxBytes:
		return nil, &refusal{http.StatusInsufficientStorage, fmt.Sprintf("the response has %d bytes; at most %d are returned: query one proxy or one kind", body.Len(), maxBytes)}
	}
	if !r.URL.Query().Has("pretty") {
		return body.Bytes(), nil
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, body.Bytes(), "", "  "); err != nil {
		return nil, &refusal{http.StatusInternalServerError, err.Error()}
	}
	return pretty.Bytes(), nil
}

// authenticate tells who asks, by what the Authenticator reads of gRPC calls: the
// metadata, and the certificate of the connection.
func (h *handler) authenticate(r *http.Request) (*authn.Caller, *refusal) {
	auth := h.current().cfg.Authenticator
	if auth == nil {
		return nil, &refusal{http.StatusUnauthorized, "only requests from this machine are answered: no method of authentication is configured"}
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
		return nil, &refusal{http.StatusServiceUnavailable, err.Error()}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, err.Error()}
	}
	return caller, nil
}
