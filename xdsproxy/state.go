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

// maxTypes is how many types are told apart in the status and in metrics. A
// peer that makes up more of them shares one place.
const maxTypes = 64

// otherTypes is that place.
const otherTypes = "other"

// Status says how old Envoy's configuration is, and what was rejected of it.
type Status struct {
	// Connected is true while a stream of the control plane is open. Since is
	// when that began or ended; zero: it has never been open.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	// LastGood is true while an Envoy is served what was last good.
	LastGood bool `json:"lastGood,omitempty"`
	// LastResponse is when the control plane last sent anything.
	LastResponse time.Time `json:"lastResponse,omitzero"`
	// Attempts are those in a row that did not reach the control plane, and
	// Failure is why the last stream or attempt ended.
	Attempts int    `json:"attempts,omitempty"`
	Failure  string `json:"failure,omitempty"`
	// Types are sorted by their URLs.
	Types []TypeStatus `json:"types,omitempty"`
}

// TypeStatus is what is known of one type. Times are zero for what has not
// happened.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// Version and Response are those of the last response.
	Version  string    `json:"version,omitempty"`
	Response time.Time `json:"response,omitzero"`
	// Accepted and Rejected are when a response was last taken and refused,
	// Reason is why: Envoy's words, or the agent's for what it takes itself.
	Accepted time.Time `json:"accepted,omitzero"`
	Rejected time.Time `json:"rejected,omitzero"`
	Reason   string    `json:"reason,omitempty"`
}

// Rejecting tells whether the last response that was answered was refused.
func (t TypeStatus) Rejecting() bool { return t.Rejected.After(t.Accepted) }

// state collects the status. It starts empty.
type state struct {
	mu     sync.Mutex // guards what follows
	status Status     // without types
	cold   int
	types  map[string]*TypeStatus
}

// Status returns a copy of what is known now.
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

// of returns the entry of a type. The caller holds mu.
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

// label is a type as the label of a metric.
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
		return // its questions are not configuration
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

// connected notes how many streams are joined now.
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

// serving notes that one stream more, or less, is served what was last good.
func (st *state) serving(change int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.cold += change
}
