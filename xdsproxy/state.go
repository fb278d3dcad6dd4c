// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package xdsproxy

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxTypes is the limit of types in the status and in metrics.
const maxTypes = 64

// otherTypes is the entry of all further types.
const otherTypes = "other"

// Status is the age of Envoy's configuration, and what was rejected.
type Status struct {
	// Connected is true while a stream of the control plane is open. Since is the
	// time when it was opened or closed; zero if it was never open.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	// LastGood is true while an Envoy is served the last good configuration.
	LastGood bool `json:"lastGood,omitempty"`
	// LastResponse is the time of the last response of the control plane.
	LastResponse time.Time `json:"lastResponse,omitzero"`
	// Attempts is the number of consecutive failed attempts, and Failure the reason
	// why the last stream or attempt ended.
	Attempts int    `json:"attempts,omitempty"`
	Failure  string `json:"failure,omitempty"`
	// Types are sorted by their URLs.
	Types []TypeStatus `json:"types,omitempty"`
}

// TypeStatus is the status of one type. Times are zero if there was no such event.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// Version and Response are the version and the time of the last response.
	Version  string    `json:"version,omitempty"`
	Response time.Time `json:"response,omitzero"`
	// Accepted and Rejected are the times of the last acceptance and rejection.
	// Reason is the reason of the rejection: that of Envoy, or of the agent for its
	// own types.
	Accepted time.Time `json:"accepted,omitzero"`
	Rejected time.Time `json:"rejected,omitzero"`
	Reason   string    `json:"reason,omitempty"`
}

// Rejecting reports whether the last answered response was rejected.
func (t TypeStatus) Rejecting() bool { return t.Rejected.After(t.Accepted) }

// state collects the status. It starts empty.
type state struct {
	mu     sync.Mutex // guards the fields below
	status Status     // without types
	cold   int
	types  map[string]*TypeStatus
}

// Status returns a copy of the current status.
func (p *Proxy) Status() Status {
	st := &p.state
	st.mu.Lock()
	out := st.status
	out.LastGood = st.cold > 0
	for _, url := range slices.Sorted(maps.Keys(st.types)) {
		out.Types = append(out.Types, *st.types[url])
	}
	st.mu.Unlock()
	var err error
	if out.Attempts, err = p.upstream.failure(); err != nil {
		out.Failure = err.Error()
	}
	return out
}

// of returns the entry of a type. The caller must hold mu.
func (st *state) of(typeURL string) *TypeStatus {
	if t := st.types[typeURL]; t != nil {
		return t
	}
	if len(st.types) >= maxTypes-1 {
		if t := st.types[otherTypes]; t != nil {
			return t
		}
		typeURL = otherTypes
	}
	if st.types == nil {
		st.types = map[string]*TypeStatus{}
	}
	t := &TypeStatus{TypeURL: strings.Clone(typeURL)}
	st.types[t.TypeURL] = t
	return t
}

// label returns the label of a type in metrics.
func (st *state) label(typeURL string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.of(typeURL).TypeURL
}

func (st *state) received(r response) {
	now := time.Now()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.status.LastResponse = now
	if strings.HasPrefix(r.typeURL, debugPrefix) {
		return // questions are not configuration
	}
	t := st.of(r.typeURL)
	t.Version, t.Response = r.version, now
}

func (st *state) settled(typeURL, reason string) {
	now := time.Now()
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.of(typeURL)
	if reason == "" {
		t.Accepted = now
		return
	}
	t.Rejected, t.Reason = now, reason
}

// connected records the number of joined streams.
func (st *state) connected(joined int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if is := joined > 0; is != st.status.Connected {
		st.status.Connected, st.status.Since = is, time.Now()
		if is {
			st.status.Failure = ""
		}
	}
}

func (st *state) failed(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.status.Failure = err.Error()
}

// serving adds to the number of streams that are served the last good configuration.
func (st *state) serving(change int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.cold += change
}
