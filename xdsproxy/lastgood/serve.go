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

// servedVersion is the version of everything that is served from disk. The control plane does not
// know it and therefore sends all of its resources.
const servedVersion = "last-good"

// Serve answers the requests of a starting Envoy from the snapshot, like an ADS server. recv
// returns Envoy's requests, and an error when the stream has ended. send takes a response and
// ownership of its bytes. Serve returns nil when the stream has ended, and the cause when ctx is
// done. Any other error says why nothing, or nothing more, can be served.
//
// Serve does not send resources that Envoy reports to have.
func (s *Store) Serve(ctx context.Context, delta bool, recv func() ([]byte, error), send func([]byte) error) error {
	srv, err := s.newServer(ctx, delta, send)
	if err != nil {
		s.refuse(err)
		return fmt.Errorf("serve the last good configuration: %w", err)
	}
	defer func() { _ = srv.file.Close() }() // read-only: closing cannot lose data
	s.log.Info("serving envoy the last good configuration", "path", s.cfg.Dir, "duration", time.Since(srv.from).Round(time.Second))
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
		// Events: the control plane is available, the stream ended, a request.
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
		_ = st.file.Close() // read-only: closing cannot lose data
		return nil, err
	}
	srv := &server{snapshot: st, store: s, delta: delta, send: send, types: map[string]*served{}}
	if convert := s.cfg.Extensions; convert != nil {
		srv.extensions = func(resources [][]byte) [][]byte { return convert(ctx, resources) }
	}
	return srv, nil
}

// server serves one stream from its own snapshot, because the store may replace the current one
// meanwhile.
type server struct {
	*snapshot
	store *Store
	delta bool
	send  func([]byte) error
	// extensions is the function of the configuration, or nil.
	extensions func(resources [][]byte) [][]byte
	types      map[string]*served
	nonce      uint64
	// routes are the route configurations that Envoy has requested. Delta only.
	routes []string
}

// served is the state of one type of a stream.
type served struct {
	typeURL  string
	nonce    string   // of the last response
	acked    bool     // Envoy has acknowledged it
	names    []string // SotW: of the last request
	wildcard bool     // delta: Envoy subscribes to all resources
}

func (v *server) handle(b []byte) error {
	q, err := readRequest(mem.BufferSlice{mem.SliceBuffer(b)}, v.delta)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(q.typeURL, envoyPrefix) && !agents(q.typeURL) {
		return nil // the type is not stored
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

// handleSotW handles a request whose names are the complete subscription.
func (v *server) handleSotW(t *served, q request, first bool) error {
	if !first && q.nonce != t.nonce {
		return nil // it refers to an older response; another request follows
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
			return nil // nothing to send without names; or Envoy has the control plane's resources
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
		return v.answer(t, query{names: q.names}) // resources that are not repeated would be removed
	case len(added) > 0:
		return v.answer(t, query{names: added})
	case again && len(q.names) > 0 && len(q.names) == len(old):
		return v.answer(t, query{names: q.names}) // it requests the same resources again
	}
	return nil
}

// handleDelta handles a request that changes the subscription.
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
		return v.answer(hosts, query{routes: ask.names}) // Envoy does not request all of them again
	}
	return nil
}

// nextNonce returns the nonce of the next response.
func (v *server) nextNonce(t *served) string {
	v.nonce++
	t.nonce, t.acked = servedVersion+"-"+strconv.FormatUint(v.nonce, 10), false
	return t.nonce
}
