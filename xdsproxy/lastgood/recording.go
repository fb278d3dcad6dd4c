// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

// patience is how long a commit waits for names that the control plane does
// not answer: there may be nothing by that name.
const patience = 30 * time.Second

// Recording is what happens on one stream that is joined to the control plane.
// Of several, the newest on which Envoy asked for anything counts. Its methods
// may be called at the same time and never block.
type Recording struct {
	store *Store
	delta bool
	over  atomic.Bool // nothing is recorded anymore
	gap   bool        // the last item was dropped; guarded by the store's mutex

	// What follows belongs to Run. heard says that the control plane sent
	// anything at all: a stream that it does not take confirms nothing.
	heard bool
	types map[string]*subscription
	// last is when the stream was last busy, first when something began to
	// wait for a commit.
	last, first time.Time
}

// Response takes what is sent to Envoy, before it is sent. The recording takes
// a reference of its own.
func (r *Recording) Response(frame mem.BufferSlice) { r.store.enqueue(r, itemResponse, frame) }

// Request takes what Envoy sends, before it is passed on. The recording takes
// a reference of its own.
func (r *Recording) Request(frame mem.BufferSlice) { r.store.enqueue(r, itemRequest, frame) }

// Close ends the recording with its stream.
func (r *Recording) Close() { r.store.enqueue(r, itemClose, nil) }

// batch is what one response does.
type batch struct {
	id      uint32
	nonce   string
	changes []change
	merge   bool // it goes with the batch before it
}

// subscription is one type of a stream.
type subscription struct {
	typeURL string
	// fresh says that Envoy had nothing of the type when the stream began,
	// full that Envoy acknowledged something or had it, replaced that what
	// was kept of the type before does not count anymore.
	fresh, full, replaced bool
	wildcard              bool
	names                 map[key]struct{} // unless wildcard
	parents               map[[parentSize]byte]struct{}
	// need is what Envoy asks for and was not sent, since a time. owed is
	// what Envoy has and is not kept as such: it has to be sent again.
	need  map[key]struct{}
	since time.Time
	owed  map[key]struct{}

	out      []*batch // sent and not answered, in order
	accepted []*batch // not committed
	flags    []byte   // of accepted
	drops    []key    // not committed; before accepted
}

// basic says whether an Envoy waits for a type before it starts.
func basic(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }

// needed says whether nothing of a type is no answer: an Envoy without clusters
// or listeners is of no use, and the agent would take it that there are no names.
func needed(typeURL string) bool { return basic(typeURL) || agents(typeURL) }

// answered says whether the control plane is expected to answer each name.
func answered(typeURL string) bool { return typeURL == endpointType || typeURL == routeType }

// begin makes the subscription of the first request of a type. The index is
// what is kept.
func begin(q request, delta bool, kept set, now time.Time) *subscription {
	t := &subscription{typeURL: q.typeURL, since: now, names: map[key]struct{}{}, parents: map[[parentSize]byte]struct{}{}}
	t.wildcard = len(q.names) == 0 && len(q.unsubscribe) == 0
	t.fresh = q.version == "" && len(q.claims) == 0
	t.full = !t.fresh && kept != nil
	if !delta || t.fresh {
		return t
	}
	claimed := make(map[key]struct{}, len(q.claims))
	for name, version := range q.claims {
		k := keyOf(name)
		claimed[k] = struct{}{}
		if version == servedVersion {
			continue // Envoy has it from here
		}
		if l, ok := kept[k]; !ok || l.version != digest([]byte(version)) {
			if t.owed == nil {
				t.owed = map[key]struct{}{}
			}
			t.owed[k] = struct{}{}
		}
	}
	for k := range kept {
		if _, ok := claimed[k]; !ok {
			t.drops = append(t.drops, k)
		}
	}
	return t
}

// subscribe follows what Envoy asks for.
func (t *subscription) subscribe(q request, delta bool, kept set, now time.Time) {
	if !delta && !t.wildcard {
		t.replaceNames(q.names, now)
		return
	}
	for _, name := range q.names {
		if name == "*" {
			t.wildcard = true
			continue
		}
		t.add(name, now)
	}
	for _, name := range q.unsubscribe {
		if name == "*" {
			t.wildcard = false
			continue
		}
		k, p := keyOf(name), parentOf(name)
		delete(t.names, k)
		delete(t.parents, p)
		delete(t.need, k)
		if t.wildcard {
			continue
		}
		if _, ok := kept[k]; ok {
			t.drops = append(t.drops, k)
		}
		if t.typeURL != virtualHostType {
			continue
		}
		for k := range kept {
			if k.under(p) {
				t.drops = append(t.drops, k)
			}
		}
	}
}

func (t *subscription) add(name string, now time.Time) {
	k := keyOf(name)
	if _, ok := t.names[k]; ok {
		return
	}
	t.names[k] = struct{}{}
	if t.typeURL == virtualHostType {
		t.parents[parentOf(name)] = struct{}{}
	}
	if answered(t.typeURL) && t.fresh {
		t.require(k, now)
	}
}

func (t *subscription) require(k key, now time.Time) {
	if t.need == nil {
		t.need = map[key]struct{}{}
	}
	t.need[k], t.since = struct{}{}, now
}

// replaceNames follows a request whose names are the whole subscription.
func (t *subscription) replaceNames(names []string, now time.Time) {
	old := t.names
	t.names = make(map[key]struct{}, len(names))
	for _, name := range names {
		k := keyOf(name)
		_, known := old[k]
		t.names[k] = struct{}{}
		if !known && answered(t.typeURL) && t.fresh {
			t.require(k, now)
		}
	}
	for k := range t.need {
		if _, ok := t.names[k]; !ok {
			delete(t.need, k)
		}
	}
}

// covers says whether Envoy asks for a resource.
func (t *subscription) covers(k key) bool {
	if t.wildcard || whole(t.typeURL) {
		return true
	}
	if _, ok := t.names[k]; ok {
		return true
	}
	_, ok := t.parents[[parentSize]byte(k[:parentSize])]
	return ok
}

// accept notes that Envoy has a batch.
func (t *subscription) accept(b *batch, delta bool) {
	flags := byte(0)
	switch {
	case b.merge, agents(t.typeURL) && len(b.changes) == 0:
		// It changes something, or nothing, of what was before.
	case !delta && whole(t.typeURL), t.fresh && !t.replaced, agents(t.typeURL):
		flags = flagReplace
	}
	t.full, t.replaced = true, true
	t.accepted, t.flags = append(t.accepted, b), append(t.flags, flags)
	for _, c := range b.changes {
		delete(t.need, c.key)
		delete(t.owed, c.key)
	}
	if len(t.need) == 0 {
		t.need = nil // an empty map keeps its room
	}
	if len(t.owed) == 0 {
		t.owed = nil
	}
}

// busy says whether something waits for a commit.
func (t *subscription) busy() bool { return len(t.accepted)+len(t.drops) > 0 }

// committed forgets what waited for a commit.
func (t *subscription) committed() { t.accepted, t.flags, t.drops = nil, nil, nil }

// reset begins anew after something of the state of the world was dropped:
// each type has to be sent again before the next commit.
func (t *subscription) reset(now time.Time) {
	t.committed()
	t.out, t.fresh, t.full, t.replaced, t.owed = nil, true, false, false, nil
	for k := range t.names {
		if answered(t.typeURL) {
			if t.owed == nil {
				t.owed = map[key]struct{}{}
			}
			t.owed[k] = struct{}{}
		}
	}
	t.since = now
}

// settled says whether what Envoy has is a state of its own: nothing is under
// way, and nothing is missing that Envoy waits for. At the end of a stream
// nobody knows what was under way; what was acknowledged counts then.
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

// settled says whether the whole stream is.
func (r *Recording) settled(now time.Time, kept map[string]set, atEnd bool) bool {
	for _, t := range r.types {
		if !t.settled(now, atEnd) {
			return false
		}
	}
	// An Envoy that starts asks for listeners when it has its clusters.
	for typeURL := range kept {
		if basic(typeURL) && r.types[typeURL] == nil {
			return false
		}
	}
	return r.heard && len(r.types) > 0
}

// busy says whether something waits for a commit.
func (r *Recording) busy() bool {
	for _, t := range r.types {
		if t.busy() {
			return true
		}
	}
	return false
}

// answer finds the batch that a nonce answers, and those before it, which
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

// partly says whether Envoy took a response except for the resources that it
// names in its rejection. It does so with clusters and listeners.
func partly(reason string) bool {
	return strings.HasPrefix(reason, "Error adding/updating cluster(s) ") || strings.HasPrefix(reason, "Error adding/updating listener(s) ")
}

// names says whether such a rejection names a resource, and not only one whose
// name ends like that.
func names(reason, resource string) bool {
	return strings.Contains(reason, " "+resource+": ") || strings.Contains(reason, "\n"+resource+": ")
}
