// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/mem"
)

// servedVersion is the version of all that is served from disk. The control
// plane does not know it, so that it sends all of its own.
const servedVersion = "last-good"

// Serve answers the requests of an Envoy that starts from what is kept, as an
// ADS server would. recv gives Envoy's requests and returns an error when the
// stream has ended; send takes a response and owns its bytes. Serve returns
// nil when the stream ended and the cause when ctx did. Any other error says
// why nothing can be served, or nothing more.
//
// What Envoy says that it has is left alone.
func (s *Store) Serve(ctx context.Context, delta bool, recv func() ([]byte, error), send func([]byte) error) error {
	srv, err := s.newServer(ctx, delta, send)
	if err != nil {
		s.refuse(err)
		return fmt.Errorf("serve the last good configuration: %w", err)
	}
	defer func() { _ = srv.file.Close() }() // it was only read from
	s.log.Info("envoy is served the last good configuration", "path", s.cfg.Dir, "duration", time.Since(srv.from).Round(time.Second))
	requests, ended := make(chan []byte), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			b, err := recv()
			if err != nil {
				return
			}
			select {
			case requests <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		// Cases: the caller has something better, Envoy went away, a request.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ended:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return nil
		case b := <-requests:
			if err := srv.handle(b); err != nil {
				s.metrics.refused.WithLabelValues(reasonOf(err)).Inc()
				return fmt.Errorf("serve the last good configuration: %w", err)
			}
		}
	}
}

func (s *Store) newServer(ctx context.Context, delta bool, send func([]byte) error) (*server, error) {
	if s.off != nil {
		return nil, s.off
	}
	st, err := s.load(false)
	if err != nil {
		return nil, err
	}
	if err := s.tooOld(filepath.Join(s.cfg.Dir, snapshotFile), st.from); err != nil {
		_ = st.file.Close() // it was only read from
		return nil, err
	}
	srv := &server{snapshot: st, store: s, delta: delta, send: send, types: map[string]*served{}}
	if convert := s.cfg.Extensions; convert != nil {
		srv.extensions = func(resources [][]byte) [][]byte { return convert(ctx, resources) }
	}
	return srv, nil
}

// server answers one stream from a snapshot of its own: another one may take its
// place meanwhile.
type server struct {
	*snapshot
	store *Store
	delta bool
	send  func([]byte) error
	// extensions is that of the configuration, nil for none.
	extensions func(resources [][]byte) [][]byte
	types      map[string]*served
	nonce      uint64
	// routes are the route configurations that Envoy asked for. Delta.
	routes []string
}

// served is one type of a stream.
type served struct {
	typeURL  string
	nonce    string   // of the last response
	acked    bool     // Envoy answered it
	names    []string // SotW: of the last request
	wildcard bool     // delta: Envoy asked for all there is
}

func (v *server) handle(b []byte) error {
	q, err := readRequest(mem.BufferSlice{mem.SliceBuffer(b)}, v.delta)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(q.typeURL, envoyPrefix) && !agents(q.typeURL) {
		return nil // of a type that is not kept
	}
	if q.rejected != "" {
		v.store.log.Warn("envoy rejects a part of the last good configuration", "type_url", q.typeURL, "reason", q.rejected)
	}
	t := v.types[q.typeURL]
	first := t == nil
	if first {
		t = &served{typeURL: q.typeURL}
		v.types[q.typeURL] = t
	}
	if v.delta {
		return v.handleDelta(t, q, first)
	}
	return v.handleSotW(t, q, first)
}

// handleSotW answers a request whose names are the whole subscription.
func (v *server) handleSotW(t *served, q request, first bool) error {
	if !first && q.nonce != t.nonce {
		return nil // it answers an older response; another one follows
	}
	again := t.acked && q.rejected == ""
	t.acked = true
	old := t.names
	t.names = q.names
	known := make(map[string]struct{}, len(old))
	for _, name := range old {
		known[name] = struct{}{}
	}
	var added []string
	for _, name := range q.names {
		if _, ok := known[name]; !ok {
			added = append(added, name)
		}
	}
	switch {
	case whole(t.typeURL):
		if !v.has(t.typeURL) && needed(t.typeURL) || first && q.version != "" && q.version != servedVersion {
			return nil // with none there is no answer; or it has those of the control plane
		}
		if !first && len(added) == 0 && !again {
			return nil
		}
		if len(q.names) > 0 && !slices.Contains(q.names, "*") {
			return v.answer(t, query{names: q.names})
		}
		return v.answer(t, query{all: true})
	case first && len(q.names) == 0:
		return v.answer(t, query{all: true})
	case len(added) > 0 && single(t.typeURL):
		return v.answer(t, query{names: q.names}) // what is not repeated would be gone
	case len(added) > 0:
		return v.answer(t, query{names: added})
	case again && len(q.names) > 0 && len(q.names) == len(old):
		return v.answer(t, query{names: q.names}) // it asks for the same once more
	}
	return nil
}

// handleDelta answers a request that changes the subscription.
func (v *server) handleDelta(t *served, q request, first bool) error {
	ask := query{all: first && len(q.names) == 0 && len(q.unsubscribe) == 0, has: q.claims}
	for _, name := range q.names {
		if name == "*" {
			ask.all = true
		} else if _, has := q.claims[name]; !has {
			ask.names = append(ask.names, name)
		}
	}
	if !ask.all && len(ask.names) == 0 {
		return nil
	}
	if ask.all {
		if !v.has(t.typeURL) && needed(t.typeURL) {
			return nil
		}
		t.wildcard = true
		if t.typeURL == virtualHostType {
			ask.routes = v.routes
		}
	}
	if err := v.answer(t, ask); err != nil || t.typeURL != routeType {
		return err
	}
	v.routes = append(v.routes, ask.names...)
	if hosts := v.types[virtualHostType]; hosts != nil && hosts.wildcard {
		return v.answer(hosts, query{routes: ask.names}) // Envoy does not ask for all of them once more
	}
	return nil
}

// nextNonce makes the nonce of a response.
func (v *server) nextNonce(t *served) string {
	v.nonce++
	t.nonce, t.acked = servedVersion+"-"+strconv.FormatUint(v.nonce, 10), false
	return t.nonce
}
