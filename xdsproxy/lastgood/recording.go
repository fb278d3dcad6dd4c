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

// patience is how long a snapshot waits for names that the control plane does
// not answer: there may be nothing by that name.
const patience = 30 * time.Second

// Recording is what happens on one stream that is joined to the control plane.
// Of several, the newest on which Envoy asked for anything counts. Its methods
// may be called at the same time and never block.
type Recording struct {
	store *Store
	delta bool
	over  atomic.Bool // nothing is recorded anymore
	gap   bool        // the last event was dropped; guarded by the store's mutex

	// What follows belongs to Run. heard is true once the control plane sent
	// anything: a stream that it does not take confirms nothing.
	heard bool
	types map[string]*subscription
	// last is when the stream was last busy, first when a change began to wait
	// for a snapshot.
	last, first time.Time
}

// Response takes what is sent to Envoy, before it is sent. The recording takes
// a reference of its own.
func (r *Recording) Response(frame mem.BufferSlice) { r.store.enqueue(r, eventResponse, frame) }

// Request takes what Envoy sends, before it is passed on. The recording takes
// a reference of its own.
func (r *Recording) Request(frame mem.BufferSlice) { r.store.enqueue(r, eventRequest, frame) }

// Close ends the recording with its stream.
func (r *Recording) Close() { r.store.enqueue(r, eventClose, nil) }

// change is what happened to a resource since the snapshot.
type change struct {
	op   byte
	size uint32 // of its record in the spool
	at   int64
}

// The operations of a change.
const (
	opPut  = iota // it is in the spool
	opKeep        // it is as in the snapshot
	opDrop
)

// batch is what one response does.
type batch struct {
	nonce   string
	changes map[string]change // by name
}

// subscription is one type of a stream.
type subscription struct {
	typeURL string
	// fresh is true if Envoy had nothing of the type when the stream began,
	// full if Envoy acknowledged something or had it.
	fresh, full bool
	wildcard    bool
	names       map[string]struct{} // that Envoy asks for, unless wildcard
	// need is what Envoy asks for and was not sent, since a time. owed is what
	// Envoy has and is not in the snapshot as such: it has to be sent again.
	need  map[string]struct{}
	since time.Time
	owed  map[string]struct{}

	out []*batch // sent and not answered, in order

	// What Envoy has, as a difference to the snapshot: pending is true if there
	// may be any. Resources without a change are as in the snapshot, unless
	// replaced, or not claimed, or a virtual host of a route configuration that
	// was given up.
	pending  bool
	changes  map[string]change
	replaced bool
	claimed  map[string]string   // nil: all
	givenUp  map[string]struct{} // route configurations
}

// basic reports whether an Envoy waits for a type before it starts.
func basic(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }

// needed reports whether nothing of a type is no answer: an Envoy without
// clusters or listeners is of no use, and the agent would conclude that there
// are no names.
func needed(typeURL string) bool { return basic(typeURL) || agents(typeURL) }

// answered reports whether the control plane is expected to answer each name.
func answered(typeURL string) bool { return typeURL == endpointType || typeURL == routeType }

// parentOf returns the route configuration of a virtual host.
func parentOf(name string) string {
	return name[:max(0, strings.LastIndexByte(name, '/'))]
}

// begin makes the subscription of the first request of a type.
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
		// What is of servedVersion Envoy has from the snapshot.
		if have, ok := saved.sum(q.typeURL, name); version != servedVersion && (!ok || have.version != digest(version)) {
			t.owe([]string{name})
		}
	}
	return t
}

// owe notes that resources have to be sent again before the next snapshot.
func (t *subscription) owe(names []string) {
	if !answered(t.typeURL) && t.claimed == nil {
		return
	}
	if t.owed == nil {
		t.owed = map[string]struct{}{}
	}
	for _, name := range names {
		t.owed[name] = struct{}{}
	}
}

// subscribe follows what Envoy asks for.
func (t *subscription) subscribe(q request, delta bool, now time.Time) {
	if !delta && !t.wildcard { // the names are the whole subscription
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

// giveUp notes that Envoy drops a resource, or the virtual hosts of a route
// configuration.
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

// covers reports whether Envoy asks for a resource.
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

// keeps reports whether Envoy has a resource as it is in the snapshot.
func (t *subscription) keeps(name string) bool {
	if c, ok := t.changes[name]; ok {
		return c.op == opKeep
	}
	_, claimed := t.claimed[name]
	_, givenUp := t.givenUp[parentOf(name)]
	return !t.replaced && (claimed || t.claimed == nil) && !givenUp
}

// accept notes that Envoy has a batch, but for the resources that a reason
// names: of those it keeps an older version, or has none.
func (t *subscription) accept(b *batch, delta bool, reason string, saved *snapshot) {
	replace := !delta && whole(t.typeURL) || t.fresh && !t.full || agents(t.typeURL)
	if agents(t.typeURL) && len(b.changes) == 0 {
		replace = false // the agent keeps what it has
	}
	next := t.changes
	if replace {
		next = make(map[string]change, len(b.changes))
	}
	for name, c := range b.changes {
		delete(t.need, name)
		delete(t.owed, name)
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
		t.need = nil // an empty map keeps its room
	}
	if len(t.owed) == 0 {
		t.owed = nil
	}
}

// saved notes that the snapshot is what Envoy has.
func (t *subscription) saved() {
	t.changes, t.pending, t.replaced, t.claimed, t.givenUp = map[string]change{}, false, false, nil, nil
}

// reset begins anew after something of the state of the world was dropped:
// each type has to be sent again before the next snapshot.
func (t *subscription) reset(now time.Time) {
	t.saved()
	t.out, t.fresh, t.full, t.owed, t.since = nil, true, false, nil, now
	t.owe(slices.Collect(maps.Keys(t.names)))
}

// settled reports whether what Envoy has is a state of its own: nothing is on
// its way, and nothing is missing that Envoy waits for. At the end of a stream
// nobody knows what was on its way; what was acknowledged counts then.
func (t *subscription) settled(now time.Time, atEnd bool) bool {
	switch {
	case len(t.out) > 0 && !atEnd, len(t.owed) > 0:
		return false
	case basic(t.typeURL):
		return t.full
	case (answered(t.typeURL) || agents(t.typeURL)) && (!t.full || len(t.need) > 0):
		return now.Sub(t.since) >= patience
	}
	return true
}

// settled reports whether the whole stream is.
func (r *Recording) settled(now time.Time, saved *snapshot, atEnd bool) bool {
	for _, t := range r.types {
		if !t.settled(now, atEnd) {
			return false
		}
	}
	// An Envoy that starts asks for listeners when it has its clusters.
	for _, typeURL := range []string{clusterType, listenerType} {
		if saved.has(typeURL) && r.types[typeURL] == nil {
			return false
		}
	}
	return r.heard && len(r.types) > 0
}

// pending reports whether something waits for a snapshot.
func (r *Recording) pending() bool {
	for _, t := range r.types {
		if t.pending {
			return true
		}
	}
	return false
}

// keeps reports whether a resource of the snapshot is a part of the next one.
func (r *Recording) keeps(res *resource) bool {
	t := r.types[res.typeURL]
	if t == nil {
		return r.keepsType(res.typeURL)
	}
	return t.keeps(res.name) && (!t.full || t.covers(res.name))
}

// keepsType reports whether a type of the snapshot is a part of the next one. A
// new Envoy has asked for all that it needs.
func (r *Recording) keepsType(typeURL string) bool {
	clusters := r.types[clusterType]
	return r.types[typeURL] != nil || clusters == nil || !clusters.fresh
}

// touched notes that a stream is busy.
func (r *Recording) touched(now time.Time) {
	if !r.pending() {
		r.first = time.Time{}
	} else if r.first.IsZero() {
		r.first = now
	}
	r.last = now
}

// answer returns the batch that a nonce answers, and those before it, which
// Envoy answered with it.
func (t *subscription) answer(nonce string) (before []*batch, b *batch) {
	i := slices.IndexFunc(t.out, func(b *batch) bool { return b.nonce == nonce })
	if i < 0 || nonce == "" {
		return nil, nil
	}
	before, b = t.out[:i:i], t.out[i]
	t.out = slices.Clone(t.out[i+1:])
	return before, b
}

// partly reports whether Envoy took a response except for the resources that it
// names in its rejection. It does so with clusters and listeners.
func partly(reason string) bool {
	return strings.HasPrefix(reason, "Error adding/updating cluster(s) ") || strings.HasPrefix(reason, "Error adding/updating listener(s) ")
}

// rejects reports whether such a rejection names a resource, and not only one
// whose name ends like that.
func rejects(reason, name string) bool {
	return strings.Contains(reason, " "+name+": ") || strings.Contains(reason, "\n"+name+": ")
}
