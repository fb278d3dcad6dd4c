// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package quarantine

import (
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// cohort contains the proxies for which the same sets are made. The Quarantine's mutex guards it.
type cohort struct {
	group *group
	made  Sets
	// inherited are the sets of the cohort from which this one took over its state. inheritedAt is
	// the sequence of the newest snapshot that its proxy had. Both are zero for none.
	inherited   Sets
	inheritedAt uint64
	// streams is the number of streams.
	streams int
	// overrides contains the resources for which something else is sent than what was made.
	overrides map[Item]*override
	// acked are the Sets that a proxy accepted last; nil if none was accepted. ackedPart are the
	// sets that they are a part of.
	acked, ackedPart Sets
	// ackedAt are the sequences of their snapshots.
	ackedAt [len(Sets{})]uint64
	// gone contains resources that did not exist before the withheld versions were made. An older
	// accepted version of such a resource is no replacement for it.
	gone map[Item]bool
	// before are the sets that were sent before the sets of this cohort were made.
	before Sets
	// views caches the result of view, as of epoch.
	views map[viewKey]view
	epoch uint64
}

// override is a resource that is not sent as it was made. variant is the version that was made;
// nil if the resource is gone.
type override struct {
	variant *variant
	// good is the version that is sent instead; nil for none.
	good *xds.Resource
	// unknown is true if there may be a good version that only proxies from before the start of
	// this server have.
	unknown bool
	// until is the time until which a removed resource is remembered if no other resource needs
	// it. The answer to the response that removed it may arrive late.
	until time.Time
	// onDemand is true for a removed resource that is sent only if another resource needs it.
	onDemand bool
}

// of reports whether the override is of a version.
func (h *override) of(res *xds.Resource) bool {
	return h != nil && h.variant != nil && res != nil && h.variant.hash == res.Hash
}

// viewKey determines which resources a proxy of a cohort receives: the proxy if it is a canary,
// or nil, and whether it has reconnected and may have resources that are not known here.
type viewKey struct {
	by       *Member
	returned bool
}

type view struct {
	sets            Sets
	open, undecided bool
	spared          map[Key]bool
}

// move moves a stream from its cohort to another; nil means none.
func (g *group) move(m *Member, to *cohort) {
	if from := m.cohort; from != nil {
		if from.streams--; from.streams == 0 {
			delete(g.cohorts, from.made)
		}
	}
	if to != nil {
		to.streams++
		g.cohorts[to.made] = to
	}
	m.cohort = to
	if to == nil {
		return
	}
	for it, v := range m.tries {
		if h := to.overrides[it]; h == nil || h.variant == nil || h.variant.candidate != v.candidate {
			if v.canary == m {
				v.canary = nil
			}
			delete(m.tries, it)
		}
	}
	m.end(attemptReplaced)
}

// cohortOf returns the cohort for made. Its first member from another cohort passes on the state
// of that cohort. A member from a newer snapshot replaces that state: the first one was late,
// perhaps because its connection is dead.
func (g *group) cohortOf(m *Member, made Sets) *cohort {
	sc, from := g.cohorts[made], m.cohort
	switch {
	case sc == nil && from == nil:
		sc = &cohort{group: g, made: made}
		sc.meet(m)
	case sc == nil:
		sc = &cohort{group: g, made: made}
		sc.inherit(from, m)
	case from != nil && from.made != sc.inherited && m.sequence > sc.inheritedAt:
		sc.inherit(from, m)
		g.decided(true)
	case from != nil && sc.learn(from, m):
		g.decided(true)
	}
	return sc
}

// learn takes over what the proxies of another cohort accepted after this one inherited its state.
// It reports whether that changes what proxies receive.
func (sc *cohort) learn(from *cohort, m *Member) (changed bool) {
	for i := range sc.acked {
		if from.acked[i] == nil {
			continue
		}
		if sc.acked[i] == nil || sc.ackedAt[i] < from.ackedAt[i] {
			sc.acked[i], sc.ackedPart[i], sc.ackedAt[i] = from.acked[i], from.ackedPart[i], from.ackedAt[i]
		}
		all := func(*xds.Resource) bool { return true }
		changed = sc.fill(Answer{Type: i, Base: from.acked[i], Sequence: from.ackedAt[i]}, all, m) || changed
	}
	return changed
}

// fill uses accepted resources as the last good versions of withheld resources that have none, or
// only an older one: the acknowledgement of an earlier response may arrive after the rejection. An
// acknowledgement that is older than others counts only for the version that was made last. It
// reports whether that changes what proxies receive.
func (sc *cohort) fill(a Answer, has func(*xds.Resource) bool, m *Member) (changed bool) {
	for it, h := range sc.overrides {
		if it.Type != a.Type || h.variant == nil || sc.gone[it] {
			continue
		}
		res, before := a.Base.Get(it.Name), sc.inherited[it.Type]
		if res == nil || h.of(res) || xds.Same(res, h.good) || len(res.Any) == 0 || !has(res) {
			continue
		}
		if (h.good != nil || a.Sequence < sc.ackedAt[it.Type]) && (before == nil || !xds.Same(res, before.Get(it.Name))) {
			continue
		}
		h.variant.good, h.variant.example = nil, nil
		h.variant.instead(res, false, m)
		sc.put(it, &override{variant: h.variant, good: res})
		if h.variant.accused() {
			h.variant.state = rejected
		}
		changed = true
	}
	return changed
}

// inherit takes over what the proxies of a cohort received, and makes new and changed resources
// candidates, unless a new proxy has already accepted them.
func (sc *cohort) inherit(from *cohort, m *Member) {
	plain := from.view(viewKey{})
	late := sc.inherited != Sets{}
	if late {
		sc.overrides, sc.views = nil, nil
	}
	sc.inherited, sc.inheritedAt, sc.before = from.made, m.sequence, plain.sets
	for i := range sc.acked {
		if sc.acked[i] == nil || sc.ackedAt[i] < from.ackedAt[i] {
			sc.acked[i], sc.ackedPart[i], sc.ackedAt[i] = from.acked[i], from.ackedPart[i], from.ackedAt[i]
		} else if from.acked[i] != nil {
			sc.acked[i] = xds.Union(from.acked[i], sc.acked[i])
		}
	}
	for it, h := range from.overrides {
		res := sc.made[it.Type].Get(it.Name)
		if h.variant == nil && res == nil || h.of(res) {
			sc.override(it, h)
		}
	}
	sc.gone = map[Item]bool{}
	for it := range from.gone {
		if sc.made[it.Type].Get(it.Name) != nil && plain.sets[it.Type].Get(it.Name) == nil {
			sc.gone[it] = true
		}
	}
	for i := range sc.made {
		if from.made[i] == sc.made[i] {
			continue
		}
		changed, removed := sc.group.q.cfg.Diff(from.made[i], sc.made[i])
		for _, name := range removed {
			if good := plain.sets[i].Get(name); good != nil {
				sc.override(Item{i, name}, &override{good: good, until: time.Now().Add(goneTime)})
			}
		}
		if i == typeEndpoint {
			continue
		}
		for _, res := range changed {
			it := Item{i, res.Name}
			if from.made[i].Get(res.Name) == nil && plain.sets[i].Get(res.Name) == nil {
				sc.gone[it] = true
			}
			if sc.acked[i] != nil && xds.Same(sc.acked[i].Get(res.Name), res) {
				continue
			}
			old := from.overrides[it]
			if v := sc.group.variants[Key{it, res.Hash}]; late && v != nil {
				v.good, v.unknown, v.example = nil, false, nil
			}
			sc.try(res, &override{good: plain.sets[i].Get(it.Name), unknown: old != nil && old.unknown}, it, m)
		}
	}
}

func (sc *cohort) put(it Item, h *override) {
	if sc.overrides == nil {
		sc.overrides = map[Item]*override{}
	}
	sc.overrides[it] = h
}

// override adds an override, or sets the last good version of an existing one that lacks it.
func (sc *cohort) override(it Item, h *override) {
	now := sc.overrides[it]
	switch {
	case now == nil:
		sc.put(it, h)
	case now.variant != nil && now.good == nil && h.variant != nil && h.variant.hash == now.variant.hash && (h.good != nil || now.unknown && !h.unknown):
		sc.overrides[it] = &override{variant: now.variant, good: h.good}
		if h.good != nil && now.variant.accused() {
			now.variant.state = rejected
		}
	}
}

// good returns the newest version of a resource, starting with res, that is neither rejected nor
// suspected.
func (g *group) good(it Item, res *xds.Resource) *xds.Resource {
	for range len(g.variants) {
		if res == nil {
			return nil
		}
		v := g.variants[Key{it, res.Hash}]
		if v == nil || v.state != rejected && v.state != suspected {
			break
		}
		res = v.good
	}
	return res
}

// try makes a resource a candidate, unless it is one already. The override contains the version
// that is sent instead.
func (sc *cohort) try(res *xds.Resource, h *override, it Item, m *Member) {
	if h.good != nil && h.good.Hash == res.Hash {
		return // reverted to the previous version
	}
	g := sc.group
	if h.variant = g.variant(it, res, m); h.variant == nil {
		if !g.q.cfg.Canary || len(g.members) < 2 {
			return
		}
		h.variant = g.newCandidate(it, res, m)
		h.variant.state, h.variant.due = trying, time.Now().Add(g.q.cfg.Patience())
		g.arm(h.variant.due)
		h.variant.after, h.variant.upTo = m.sequence, m.placing
	}
	h.variant.instead(h.good, h.unknown, m)
	if h.variant.state != accepted {
		sc.override(it, h)
	}
}

// meet initializes a cohort whose first member is new with the known state of its group.
func (sc *cohort) meet(m *Member) {
	g := sc.group
	for key, t := range g.candidates {
		if t.state == accepted {
			continue
		}
		it := key.Item
		it.Name = strings.ReplaceAll(it.Name, anyAddress, m.address)
		res := sc.made[it.Type].Get(it.Name)
		if res == nil || g.variants[Key{it, res.Hash}] == nil && shapeOf(it, res, m.address) != key {
			continue
		}
		if v := g.variant(it, res, m); v != nil && v.state != accepted {
			sc.put(it, &override{variant: v, good: v.good, unknown: v.unknown})
		}
	}
	for key, v := range g.variants {
		if res := sc.made[key.Type].Get(key.Name); res != nil && res.Hash == key.Hash && v.state != accepted {
			sc.put(key.Item, &override{variant: v, good: v.good, unknown: v.unknown})
		}
	}
	if len(sc.overrides) == 0 {
		return
	}
	for _, other := range g.cohorts {
		for it, h := range other.overrides {
			if h.variant == nil && sc.overrides[it] == nil && sc.made[it.Type].Get(it.Name) == nil {
				sc.put(it, &override{good: h.good, onDemand: true, until: h.until})
			}
		}
	}
}

// view returns what the proxies of a cohort receive.
func (sc *cohort) view(key viewKey) view {
	if len(sc.overrides) == 0 {
		return view{sets: sc.made}
	}
	epoch := sc.group.epoch.Load()
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

func (sc *cohort) makeView(key viewKey) view {
	b := viewBuilder{q: sc.group.q, instead: map[Item]*xds.Resource{}}
	out := view{}
	for it, h := range sc.overrides {
		if h.variant == nil {
			continue
		}
		t := h.variant.candidate
		if t.state == accepted {
			delete(sc.overrides, it)
			continue
		}
		if t.canary != nil && t.canary == key.by {
			continue
		}
		good := sc.group.good(it, h.good)
		if t.state != trying && sc.group.q.protects(sc.made[it.Type].Get(it.Name), good) {
			continue // a rejection never withholds a change of security settings
		}
		out.open = out.open || t.reason == ""
		out.undecided = out.undecided || t.state != rejected
		if good == nil && h.unknown && key.returned {
			if out.spared == nil {
				out.spared = map[Key]bool{}
			}
			out.spared[Key{it, h.variant.hash}] = true
			continue
		}
		b.put(it, good)
	}
	b.keepGone(sc.overrides, out.open)
	if key == (viewKey{}) && !out.open {
		now := time.Now()
		for it, h := range sc.overrides {
			if _, given := b.instead[it]; h.variant != nil || given {
				continue
			}
			if delete(sc.overrides, it); now.Before(h.until) {
				sc.overrides[it] = &override{good: h.good, onDemand: true, until: h.until}
			}
		}
	}
	for i := range sc.made {
		out.sets[i] = sc.substitute(i, b.instead)
	}
	return out
}

// viewBuilder collects the resources that are sent instead of those that were made; nil means
// none.
type viewBuilder struct {
	q       *Quarantine
	instead map[Item]*xds.Resource
	// naming are those of them that may refer to others by name.
	naming []*xds.Resource
}

func (b *viewBuilder) put(it Item, res *xds.Resource) {
	b.instead[it] = res
	if res != nil && it.Type != typeEndpoint {
		b.naming = append(b.naming, res)
	}
}

// keepGone adds the removed resources that are still needed, or all of them.
func (b *viewBuilder) keepGone(overrides map[Item]*override, all bool) {
	for again := true; again; {
		again = false
		for it, h := range overrides {
			if _, done := b.instead[it]; h.variant == nil && !done && (all && !h.onDemand || b.needs(it)) {
				b.put(it, h.good)
				again = true
			}
		}
	}
}

// needs reports whether a resource that is sent instead of another refers to a removed one.
func (b *viewBuilder) needs(it Item) bool {
	switch it.Type {
	case typeHost:
		return b.instead[Item{typeRoute, it.Name[:max(0, strings.LastIndexByte(it.Name, '/'))]}] != nil
	case typeCluster, typeEndpoint, typeRoute:
		return slices.ContainsFunc(b.naming, func(res *xds.Resource) bool { return b.q.textsOf(res).has(it.Name) })
	}
	return false
}

// substitute returns the set of a type that was made, with the replacements.
func (sc *cohort) substitute(i int, instead map[Item]*xds.Resource) *xds.Set {
	made := sc.made[i]
	var list []*xds.Resource
	for it, res := range instead {
		if it.Type != i {
			continue
		}
		if list == nil {
			list = slices.Clone(made.Resources)
		}
		at, found := slices.BinarySearchFunc(list, it.Name, func(r *xds.Resource, name string) int { return strings.Compare(r.Name, name) })
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
	return xds.NewSet(nil, list, nil)
}
