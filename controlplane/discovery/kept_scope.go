// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// scope are proxies for which the same is made. The keeper's mutex guards it.
type scope struct {
	circle *circle
	made   sets
	// inherited is true if it took over what its proxies were given before.
	inherited bool
	// streams is how many there are.
	streams int
	// holds are the places where something else is given than what was made.
	holds map[item]*hold
	// acked are sets that a proxy took last, nil if none did yet; ackedPart what
	// they are a part of.
	acked, ackedPart sets
	// ackedAt are the sequences of the snapshots that they are of.
	ackedAt [len(sets{})]uint64
	// before is what was given before this was made; empty without holds.
	before sets
	// views are what is given, as of epoch.
	views map[viewKey]view
	epoch uint64
}

// hold is a resource that is not given as it was made: variant is that which
// was, nil if the resource is gone.
type hold struct {
	variant *variant
	hash    uint64
	// good is what is given in its place, nil for nothing.
	good *xds.Resource
	// unknown is true if there may be a good one that only proxies have which
	// were there before this server.
	unknown bool
	// until is how long what is gone is remembered if nothing needs it: the
	// answer to what came with its end may be late.
	until time.Time
	// lent is true for what is gone and given only if it is needed.
	lent bool
}

// viewKey is what decides what a proxy of a scope is given: what it has claimed,
// nil for nothing, and whether it came back and may have what is not known here.
type viewKey struct {
	by       *claim
	returned bool
}

type view struct {
	sets            sets
	open, undecided bool
	spared          map[resourceKey]bool
}

// move brings a stream from one scope to another; nil is none.
func (c *circle) move(st *stream, to *scope) {
	if from := st.place.scope; from != nil {
		if from.streams--; from.streams == 0 {
			delete(c.scopes, from.made)
		}
	}
	if to != nil {
		to.streams++
		c.scopes[to.made] = to
	}
	st.place.scope = to
	if cl := st.place.claim; cl != nil && to != nil {
		for it, m := range cl.items {
			if h := to.holds[it]; h == nil || h.variant == nil || h.variant.trial != m.trial {
				if m.trial.claim == cl {
					m.trial.claim = nil
				}
				delete(cl.items, it)
			}
		}
		c.end(cl, claimReplaced)
	}
}

// scopeOf gives the scope of what was made. The first proxy that comes to it from
// another one brings along what it was given until then.
func (c *circle) scopeOf(st *stream, made sets) *scope {
	sc, from := c.scopes[made], st.place.scope
	switch {
	case sc == nil && from == nil:
		sc = &scope{circle: c, made: made}
		sc.meet(st)
	case sc == nil:
		sc = &scope{circle: c, made: made}
		sc.inherit(from, st)
	case from != nil && !sc.inherited:
		sc.inherit(from, st)
		c.decided(true)
	}
	return sc
}

// inherit takes over what the proxies of a scope were given, and puts on trial
// what is new, unless a proxy that was new took it already.
func (sc *scope) inherit(from *scope, st *stream) {
	plain := from.view(viewKey{})
	sc.inherited, sc.before = true, plain.sets
	for i := range sc.acked {
		if sc.acked[i] == nil {
			sc.acked[i], sc.ackedPart[i], sc.ackedAt[i] = from.acked[i], from.ackedPart[i], from.ackedAt[i]
		} else if from.acked[i] != nil {
			sc.acked[i] = union(from.acked[i], sc.acked[i])
		}
	}
	for it, h := range from.holds {
		res := sc.made[it.typ].Get(it.name)
		if h.variant == nil && res == nil || h.variant != nil && res != nil && res.Hash == h.hash {
			sc.hold(it, h)
		}
	}
	for i := range sc.made {
		if from.made[i] == sc.made[i] {
			continue
		}
		u := sc.circle.keeper.shared.update(updateKey{from: from.made[i], to: sc.made[i]})
		for _, name := range u.removed {
			if good := plain.sets[i].Get(name); good != nil {
				sc.hold(item{i, name}, &hold{good: good, until: time.Now().Add(goneTime)})
			}
		}
		if i == typeEndpoint {
			continue
		}
		for _, res := range u.changed {
			it := item{i, res.Name}
			if sc.acked[i] != nil && wantOf(sc.acked[i].Get(res.Name)) == wantOf(res) {
				continue
			}
			old := from.holds[it]
			sc.try(res, &hold{hash: res.Hash, good: plain.sets[i].Get(it.name), unknown: old != nil && old.unknown}, it, st)
		}
	}
	if len(sc.holds) == 0 {
		sc.before = sets{}
	}
}

func (sc *scope) put(it item, h *hold) {
	if sc.holds == nil {
		sc.holds = map[item]*hold{}
	}
	sc.holds[it] = h
}

// hold enters a hold, or what one lacked that was made when less was known.
func (sc *scope) hold(it item, h *hold) {
	now := sc.holds[it]
	switch {
	case now == nil:
		sc.put(it, h)
	case now.variant != nil && now.good == nil && h.hash == now.hash && (h.good != nil || now.unknown && !h.unknown):
		sc.holds[it] = &hold{variant: now.variant, hash: now.hash, good: h.good}
		if h.good != nil && now.variant.accused() {
			now.variant.state = rejected
		}
	}
}

// good is the newest version of a resource, from one on, that was not rejected.
func (c *circle) good(it item, res *xds.Resource) *xds.Resource {
	for range len(c.variants) {
		if res == nil {
			return nil
		}
		v := c.variants[resourceKey{it, res.Hash}]
		if v == nil || v.state != rejected && v.state != suspected {
			break
		}
		res = v.good
	}
	return res
}

// try puts a resource on trial, unless it is known. The hold says what is given
// in its place.
func (sc *scope) try(res *xds.Resource, h *hold, it item, st *stream) {
	if h.good != nil && h.good.Hash == res.Hash {
		return // back to what it was
	}
	c := sc.circle
	if h.variant = c.variant(it, res, st); h.variant == nil {
		if !c.keeper.canary || len(c.streams) < 2 {
			return
		}
		h.variant = c.newTrial(it, res, st)
		h.variant.state, h.variant.due = trying, time.Now().Add(c.keeper.patience)
		c.arm(h.variant.due)
		h.variant.after, h.variant.upTo = st.place.sequence, st.mesh.Sequence
	}
	h.variant.instead(h.good, h.unknown, st)
	if h.variant.state != taken {
		sc.hold(it, h)
	}
}

// meet has a scope whose first proxy is new take over what is known in its
// circle.
func (sc *scope) meet(st *stream) {
	c := sc.circle
	for key, t := range c.trials {
		if t.state == taken {
			continue
		}
		it := key.item
		it.name = strings.ReplaceAll(it.name, ownAddress, addressOf(st))
		res := sc.made[it.typ].Get(it.name)
		if res == nil || c.variants[resourceKey{it, res.Hash}] == nil && shapeOf(it, res, addressOf(st)) != key {
			continue
		}
		if v := c.variant(it, res, st); v != nil && v.state != taken {
			sc.put(it, &hold{variant: v, hash: res.Hash, good: v.good, unknown: v.unknown})
		}
	}
	for key, v := range c.variants {
		if res := sc.made[key.typ].Get(key.name); res != nil && res.Hash == key.hash && v.state != taken {
			sc.put(key.item, &hold{variant: v, hash: res.Hash, good: v.good, unknown: v.unknown})
		}
	}
	if len(sc.holds) == 0 {
		return
	}
	for _, other := range c.scopes {
		for it, h := range other.holds {
			if h.variant == nil && sc.holds[it] == nil && sc.made[it.typ].Get(it.name) == nil {
				sc.put(it, &hold{good: h.good, lent: true, until: h.until})
			}
		}
	}
}

// ownAddress stands for the address of a proxy in what is compared without it.
const ownAddress = "\x00"

func addressOf(st *stream) string {
	if len(st.proxy.IPs) == 0 {
		return ownAddress
	}
	return st.proxy.IPs[0]
}

// shapeOf is a resource without the address of its proxy.
func shapeOf(it item, res *xds.Resource, address string) resourceKey {
	key := resourceKey{it, res.Hash}
	if bytes.Contains(res.Any, []byte(address)) {
		key.name = strings.ReplaceAll(it.name, address, ownAddress)
		key.hash = xxhash.Sum64(bytes.ReplaceAll(res.Any, []byte(address), []byte(ownAddress)))
	}
	return key
}

// view gives what the proxies of a scope are given.
func (sc *scope) view(key viewKey) view {
	if len(sc.holds) == 0 {
		return view{sets: sc.made}
	}
	epoch := sc.circle.epoch.Load()
	if sc.views == nil || sc.epoch != epoch {
		sc.views, sc.epoch = map[viewKey]view{}, epoch
	}
	v, ok := sc.views[key]
	if !ok {
		v = sc.makeView(key)
		sc.views[key] = v
	}
	return v
}

func (sc *scope) makeView(key viewKey) view {
	b := viewBuilder{instead: map[item]*xds.Resource{}}
	out := view{}
	for it, h := range sc.holds {
		if h.variant == nil {
			continue
		}
		t := h.variant.trial
		if t.state == taken {
			delete(sc.holds, it)
			continue
		}
		if t.claim != nil && t.claim == key.by {
			continue
		}
		good := sc.circle.good(it, h.good)
		if t.state != trying && protects(sc.made[it.typ].Get(it.name), good) {
			continue // a rejection withholds nothing that protects
		}
		out.open = out.open || t.reason == ""
		out.undecided = out.undecided || t.state != rejected
		if good == nil && h.unknown && key.returned {
			if out.spared == nil {
				out.spared = map[resourceKey]bool{}
			}
			out.spared[resourceKey{it, h.hash}] = true
			continue
		}
		b.put(it, good)
	}
	b.keepGone(sc.holds, out.open)
	if key == (viewKey{}) && !out.open {
		now := time.Now()
		for it, h := range sc.holds {
			if _, given := b.instead[it]; h.variant != nil || given {
				continue
			}
			if delete(sc.holds, it); now.Before(h.until) {
				sc.holds[it] = &hold{good: h.good, lent: true, until: h.until}
			}
		}
	}
	for i := range sc.made {
		out.sets[i] = sc.substitute(i, b.instead)
	}
	return out
}

// viewBuilder gathers what is given in the place of what was made; nil is
// nothing.
type viewBuilder struct {
	instead map[item]*xds.Resource
	// naming are the listeners, routes and virtual hosts among them.
	naming [][]byte
}

func (b *viewBuilder) put(it item, res *xds.Resource) {
	b.instead[it] = res
	if res != nil && it.typ != typeCluster && it.typ != typeEndpoint {
		b.naming = append(b.naming, res.Any)
	}
}

// keepGone adds what is gone and still needed, or all of it.
func (b *viewBuilder) keepGone(holds map[item]*hold, all bool) {
	for again := true; again; {
		again = false
		for it, h := range holds {
			if _, done := b.instead[it]; h.variant == nil && !done && (all && !h.lent || b.needs(it)) {
				b.put(it, h.good)
				again = true
			}
		}
	}
}

// needs reports whether something that is given in the place of another names
// a resource that is gone.
func (b *viewBuilder) needs(it item) bool {
	switch it.typ {
	case typeEndpoint:
		return b.instead[item{typeCluster, it.name}] != nil
	case typeHost:
		return b.instead[item{typeRoute, routeOf(it.name)}] != nil
	case typeCluster, typeRoute:
		return slices.ContainsFunc(b.naming, func(res []byte) bool { return bytes.Contains(res, []byte(it.name)) })
	}
	return false
}

// substitute gives what was made of a type, with what is given instead.
func (sc *scope) substitute(i int, instead map[item]*xds.Resource) *xds.Set {
	made := sc.made[i]
	var list []*xds.Resource
	for it, res := range instead {
		if it.typ != i {
			continue
		}
		if list == nil {
			list = slices.Clone(made.Resources)
		}
		at, found := slices.BinarySearchFunc(list, it.name, func(r *xds.Resource, name string) int { return strings.Compare(r.Name, name) })
		switch {
		case found && res == nil:
			list = slices.Delete(list, at, at+1)
		case found:
			list[at] = res
		case res != nil:
			list = slices.Insert(list, at, res)
		}
	}
	before := sc.before[i]
	switch {
	case list == nil:
		return made
	case before != nil && slices.Equal(list, before.Resources):
		return before
	}
	digest := xxhash.New()
	var sum [8]byte
	for _, r := range list {
		_, _ = digest.WriteString(r.Name) // a digest takes everything
		binary.LittleEndian.PutUint64(sum[:], r.Hash)
		_, _ = digest.Write(sum[:])
	}
	return &xds.Set{Resources: list, Version: versionOf(digest.Sum64())}
}
