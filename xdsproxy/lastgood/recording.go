// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

// patience is how long a snapshot waits for names that the control plane does not answer, because
// they may not exist.
const patience = 30 * time.Second

// Recording records one stream that is connected to the control plane. If there are several, the
// newest one with a request from Envoy counts. Its methods are safe for concurrent use and never
// block.
type Recording struct {
	store *Store
	delta bool
	over  atomic.Bool // recording has ended
	gap   bool        // the last event was dropped; guarded by the store's mutex

	// The fields below belong to Run. heard is true once the control plane has sent anything: a
	// stream that it rejects confirms nothing.
	heard bool
	types map[string]*subscription
	// last is the time of the last activity, first the time of the oldest change that waits for a
	// snapshot.
	last, first time.Time
}

// Response records a frame to Envoy, before it is sent. The recording takes its own reference.
func (r *Recording) Response(frame mem.BufferSlice) { r.store.enqueue(r, eventResponse, frame) }

// Request records a frame from Envoy, before it is forwarded. The recording takes its own
// reference.
func (r *Recording) Request(frame mem.BufferSlice) { r.store.enqueue(r, eventRequest, frame) }

// Close ends the recording at the end of its stream.
func (r *Recording) Close() { r.store.enqueue(r, eventClose, nil) }

// change is the change of a resource since the snapshot.
type change struct {
	op   byte
	size uint32 // size of its record in the spool
	at   int64
}

// Operations of a change.
const (
	opPut  = iota // the resource is in the spool
	opKeep        // the resource is unchanged from the snapshot
	opDrop
)

// batch contains the changes of one response.
type batch struct {
	nonce   string
	changes map[string]change // by name
}

// subscription is the state of one type of a stream.
type subscription struct {
	typeURL string
	// fresh is true if Envoy had no resources of the type when the stream began; full is true if
	// Envoy has acknowledged some or had them.
	fresh, full bool
	wildcard    bool
	names       map[string]struct{} // names that Envoy requests, unless wildcard
	// need are names that Envoy has requested but that were not sent, the newest requested at the
	// time since. missing are resources that Envoy has in a version that is not in the snapshot: they
	// must be sent again.
	need    map[string]struct{}
	since   time.Time
	missing map[string]struct{}

	out []*batch // sent but not acknowledged, in order

	// The difference between Envoy's state and the snapshot. pending is true if there may be any.
	// Resources without a change are as in the snapshot, unless replaced is set, they are not
	// claimed, or they are virtual hosts of a route configuration in givenUp.
	pending  bool
	changes  map[string]change
	replaced bool
	claimed  map[string]string   // nil means all
	givenUp  map[string]struct{} // route configurations
}

// basic reports whether Envoy waits for a type before it starts.
func basic(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }

// needed reports whether an empty response of a type is unusable: an Envoy without clusters or
// listeners is of no use, and the agent would conclude that no names exist.
func needed(typeURL string) bool { return basic(typeURL) || agents(typeURL) }

// answered reports whether the control plane is expected to respond to each requested name.
func answered(typeURL string) bool { return typeURL == endpointType || typeURL == routeType }

// parentOf returns the name of a virtual host's route configuration.
func parentOf(name string) string {
	return name[:max(0, strings.LastIndexByte(name, '/'))]
}

// begin returns the subscription for the first request of a type.
func begin(q request, delta bool, saved *snapshot, now time.Time) *subscription {
	t := &subscription{typeURL: q.typeURL, since: now, names: map[string]struct{}{}, changes: map[string]change{}}
	t.wildcard = len(q.names) == 0 && len(q.unsubscribe) == 0
	t.fresh = q.version == "" && len(q.claims) == 0
	if t.fresh {
		return t
	}
	t.full = saved.has(q.typeURL)
	if !delta {
		if !t.full {
			t.owe(q.names)
		}
		return t
	}
	t.claimed, t.pending = q.claims, t.full
	for name, version := range q.claims {
		// Resources with servedVersion come from the snapshot.
		if have, ok := saved.sum(q.typeURL, name); version != servedVersion && (!ok || have.version != digest(version)) {
			t.owe([]string{name})
		}
	}
	return t
}

// owe records resources that must be sent again before the next snapshot.
func (t *subscription) owe(names []string) {
	if !answered(t.typeURL) && t.claimed == nil {
		return
	}
	if t.missing == nil {
		t.missing = map[string]struct{}{}
	}
	for _, name := range names {
		t.missing[name] = struct{}{}
	}
}

// subscribe updates the subscription according to a request.
func (t *subscription) subscribe(q request, delta bool, now time.Time) {
	if !delta && !t.wildcard { // the names are the complete subscription
		old := t.names
		t.names = make(map[string]struct{}, len(q.names))
		for _, name := range q.names {
			_, known := old[name]
			t.add(name, known, now)
		}
		for name := range t.need {
			if _, ok := t.names[name]; !ok {
				delete(t.need, name)
			}
		}
		return
	}
	for _, name := range q.names {
		if name == "*" {
			t.wildcard = true
			continue
		}
		_, known := t.names[name]
		t.add(name, known, now)
	}
	for _, name := range q.unsubscribe {
		if name == "*" {
			t.wildcard = false
			continue
		}
		delete(t.names, name)
		delete(t.need, name)
		if !t.wildcard {
			t.giveUp(name)
		}
	}
}

func (t *subscription) add(name string, known bool, now time.Time) {
	t.names[name] = struct{}{}
	if known || !answered(t.typeURL) || !t.fresh {
		return
	}
	if t.need == nil {
		t.need = map[string]struct{}{}
	}
	t.need[name], t.since = struct{}{}, now
}

// giveUp records that Envoy removes a resource, or the virtual hosts of a route configuration.
func (t *subscription) giveUp(name string) {
	t.changes[name], t.pending = change{op: opDrop}, true
	if t.typeURL != virtualHostType {
		return
	}
	for host := range t.changes {
		if parentOf(host) == name {
			delete(t.changes, host)
		}
	}
	if t.givenUp == nil {
		t.givenUp = map[string]struct{}{}
	}
	t.givenUp[name] = struct{}{}
}

// covers reports whether Envoy subscribes to a resource.
func (t *subscription) covers(name string) bool {
	if t.wildcard || whole(t.typeURL) {
		return true
	}
	_, ok := t.names[name]
	if !ok && t.typeURL == virtualHostType {
		_, ok = t.names[parentOf(name)]
	}
	return ok
}

// keeps reports whether Envoy's version of a resource is the one in the snapshot.
func (t *subscription) keeps(name string) bool {
	if c, ok := t.changes[name]; ok {
		return c.op == opKeep
	}
	_, claimed := t.claimed[name]
	_, givenUp := t.givenUp[parentOf(name)]
	return !t.replaced && (claimed || t.claimed == nil) && !givenUp
}

// accept records that Envoy has accepted a batch, except for the resources that the reason of a
// rejection names. Of those, Envoy keeps the older version, if there is one.
func (t *subscription) accept(b *batch, delta bool, reason string, saved *snapshot) {
	replace := !delta && whole(t.typeURL) || t.fresh && !t.full || agents(t.typeURL)
	if agents(t.typeURL) && len(b.changes) == 0 {
		replace = false // the agent keeps its resources
	}
	next := t.changes
	if replace {
		next = make(map[string]change, len(b.changes))
	}
	for name, c := range b.changes {
		delete(t.need, name)
		delete(t.missing, name)
		if reason == "" || !rejects(reason, name) {
			next[name] = c
		} else if old, ok := t.changes[name]; replace && ok {
			next[name] = old
		} else if _, ok := saved.sum(t.typeURL, name); ok && replace && t.full && t.keeps(name) {
			next[name] = change{op: opKeep}
		}
	}
	t.changes, t.pending, t.full = next, true, true
	if replace {
		t.replaced, t.claimed, t.givenUp = true, nil, nil
	}
	if len(t.need) == 0 {
		t.need = nil // an empty map does not release its memory
	}
	if len(t.missing) == 0 {
		t.missing = nil
	}
}

// saved records that the snapshot is Envoy's state.
func (t *subscription) saved() {
	t.changes, t.pending, t.replaced, t.claimed, t.givenUp = map[string]change{}, false, false, nil, nil
}

// reset restarts the recording after state-of-the-world frames were dropped: each type must be sent
// again before the next snapshot.
func (t *subscription) reset(now time.Time) {
	t.saved()
	t.out, t.fresh, t.full, t.missing, t.since = nil, true, false, nil, now
	t.owe(slices.Collect(maps.Keys(t.names)))
}

// settled reports whether Envoy's state is consistent: no response is unacknowledged and nothing
// that Envoy waits for is missing. At the end of a stream, unacknowledged responses are ignored,
// because it is unknown whether they arrived.
func (t *subscription) settled(now time.Time, atEnd bool) bool {
	switch {
	case len(t.out) > 0 && !atEnd, len(t.missing) > 0:
		return false
	case basic(t.typeURL):
		return t.full
	case (answered(t.typeURL) || agents(t.typeURL)) && (!t.full || len(t.need) > 0):
		return now.Sub(t.since) >= patience
	}
	return true
}

// settled reports whether all types of the stream are settled.
func (r *Recording) settled(now time.Time, saved *snapshot, atEnd bool) bool {
	for _, t := range r.types {
		if !t.settled(now, atEnd) {
			return false
		}
	}
	// A starting Envoy requests listeners once it has its clusters.
	for _, typeURL := range []string{clusterType, listenerType} {
		if saved.has(typeURL) && r.types[typeURL] == nil {
			return false
		}
	}
	return r.heard && len(r.types) > 0
}

// pending reports whether there are changes that wait for a snapshot.
func (r *Recording) pending() bool {
	for _, t := range r.types {
		if t.pending {
			return true
		}
	}
	return false
}

// keeps reports whether a resource of the snapshot belongs to the next one.
func (r *Recording) keeps(res *resource) bool {
	t := r.types[res.typeURL]
	if t == nil {
		return r.keepsType(res.typeURL)
	}
	return t.keeps(res.name) && (!t.full || t.covers(res.name))
}

// keepsType reports whether a type of the snapshot belongs to the next one. Once a new Envoy has
// started, it has requested all types that it needs.
func (r *Recording) keepsType(typeURL string) bool {
	clusters := r.types[clusterType]
	return r.types[typeURL] != nil || clusters == nil || !clusters.fresh
}

// touched records activity on the stream.
func (r *Recording) touched(now time.Time) {
	if !r.pending() {
		r.first = time.Time{}
	} else if r.first.IsZero() {
		r.first = now
	}
	r.last = now
}

// answer returns the batch with the given nonce, and the preceding batches, which are acknowledged
// with it.
func (t *subscription) answer(nonce string) (before []*batch, b *batch) {
	i := slices.IndexFunc(t.out, func(b *batch) bool { return b.nonce == nonce })
	if i < 0 || nonce == "" {
		return nil, nil
	}
	before, b = t.out[:i:i], t.out[i]
	t.out = slices.Clone(t.out[i+1:])
	return before, b
}

// partly reports whether Envoy has accepted a response except for the resources named in its
// rejection, as it does with clusters and listeners.
func partly(reason string) bool {
	return strings.HasPrefix(reason, "Error adding/updating cluster(s) ") || strings.HasPrefix(reason, "Error adding/updating listener(s) ")
}

// rejects reports whether such a rejection names the resource, rather than one whose name only ends
// in the same way.
func rejects(reason, name string) bool {
	return strings.Contains(reason, " "+name+": ") || strings.Contains(reason, "\n"+name+": ")
}
