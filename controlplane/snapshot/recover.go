// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// An object that no rule foresaw can make the code that builds a snapshot panic.
// It must not take the mesh with it: Build finds the object among those that
// changed, goes on with its last good version, or without it, and says so. The
// object is not looked at again until it changes.

// inputs are the objects that a snapshot was built from. They are never written
// to.
type inputs struct {
	// lists are by kind, as they were last read; read is what was read one by
	// one since then, nil for what was gone.
	lists map[model.Kind][]*model.Config
	read  map[model.Key]*model.Config
	// broken are the objects that cannot be built from.
	broken map[model.Key]broken
	// owed is what changed and was not built.
	owed model.Change
}

// broken is an object that cannot be built from.
type broken struct {
	// object is nil where its end is what cannot be built from; good is what
	// replaces it, nil for nothing.
	object, good *model.Config
	reason       string
}

// of returns an object as the snapshot has it, nil for none.
func (i *inputs) of(key model.Key) *model.Config {
	if c, ok := i.read[key]; ok {
		return c
	}
	for _, c := range i.lists[key.Kind] {
		if c != nil && c.Key == key {
			return c
		}
	}
	return nil
}

// builder makes a snapshot, as build does.
type builder func(prev *Mesh, in Input, change model.Change) *Mesh

// maxSpoilt bounds the search: if there are more, all that changed stays as it
// was.
const maxSpoilt = 64

// guarded builds, and survives objects that cannot be built from. It panics only
// where there is neither a snapshot before this one nor one without objects.
func guarded(prev *Mesh, in Input, change model.Change, build builder) *Mesh {
	g := &guard{
		prev: prev, in: in, change: change, build: build, broken: map[model.Key]broken{},
		now: inputs{lists: map[model.Kind][]*model.Config{}, read: map[model.Key]*model.Config{}},
	}
	if prev != nil {
		g.before = prev.inputs
		g.change = change.Merge(g.before.owed)
		maps.Copy(g.broken, g.before.broken)
	}
	m, cause := g.attempt(nil)
	if cause == nil {
		return m
	}
	return g.search(cause)
}

// guard is one Build.
type guard struct {
	prev   *Mesh
	in     Input
	change model.Change
	build  builder
	before inputs
	broken map[model.Key]broken
	// now is what was read of the stores, once for all attempts.
	now inputs
}

func (g *guard) list(kind model.Kind) []*model.Config {
	list, ok := g.now.lists[kind]
	if !ok {
		list = g.in.List(kind)
		g.now.lists[kind] = list
	}
	return list
}

func (g *guard) get(key model.Key) *model.Config {
	c, ok := g.now.read[key]
	if !ok {
		c = g.in.Get(key)
		g.now.read[key] = c
	}
	return c
}

// attempt builds once. Objects that are in held are as they were before; cause
// is not nil if it panicked.
func (g *guard) attempt(held map[model.Key]bool) (m *Mesh, cause any) {
	defer func() {
		if cause = recover(); cause != nil {
			m = nil
		}
	}()
	used := inputs{lists: map[model.Kind][]*model.Config{}, read: map[model.Key]*model.Config{}}
	in := g.in
	in.List = func(kind model.Kind) []*model.Config {
		if _, ok := used.lists[kind]; !ok {
			used.lists[kind] = g.instead(kind, held)
		}
		return used.lists[kind]
	}
	if g.in.Get != nil {
		in.Get = func(key model.Key) *model.Config {
			c := g.get(key)
			if held[key] {
				c = g.before.of(key)
			} else if s, ok := g.broken[key]; ok && sameOrNone(s.object, c) {
				c = s.good
			}
			used.read[key] = c
			return c
		}
	}
	m = g.build(g.prev, in, g.change)
	m.inputs = g.keep(used)
	m.Problems = slices.Concat(m.Problems, m.inputs.problems())
	return m, nil
}

// keep adds to what was read what is as it was.
func (g *guard) keep(used inputs) inputs {
	for kind, list := range g.before.lists {
		if _, ok := used.lists[kind]; !ok {
			used.lists[kind] = list
		}
	}
	for key, c := range g.before.read {
		_, again := used.read[key]
		if _, listed := g.now.lists[key.Kind]; !again && !listed {
			used.read[key] = c
		}
	}
	for key, s := range g.broken {
		now, read := g.now.read[key]
		if _, listed := g.now.lists[key.Kind]; listed {
			now, read = g.now.of(key), true
		}
		if !read || sameOrNone(s.object, now) {
			if used.broken == nil {
				used.broken = map[model.Key]broken{}
			}
			used.broken[key] = s
		}
	}
	return used
}

// instead returns the objects of a kind as they are built from.
func (g *guard) instead(kind model.Kind, held map[model.Key]bool) []*model.Config {
	list, instead := g.list(kind), map[model.Key]*model.Config{}
	for key, s := range g.broken {
		if key.Kind == kind && sameOrNone(s.object, g.now.of(key)) {
			instead[key] = s.good
		}
	}
	for key := range held {
		if key.Kind == kind {
			instead[key] = g.before.of(key)
		}
	}
	if len(instead) == 0 {
		return list
	}
	out := make([]*model.Config, 0, len(list))
	for _, c := range list {
		if c == nil {
			continue
		}
		if _, other := instead[c.Key]; !other {
			out = append(out, c)
		}
	}
	for _, good := range instead { // Build puts them in order
		if good != nil {
			out = append(out, good)
		}
	}
	return out
}

// search finds what cannot be built from among what changed, and builds without
// it.
func (g *guard) search(cause any) *Mesh {
	for range maxSpoilt {
		changed := g.changed()
		if len(changed) == 0 {
			break
		}
		// With the first good of what changed it can be built, with the first bad
		// it cannot.
		good, bad := 0, len(changed)
		if _, failed := g.attempt(keysOf(changed)); failed != nil {
			return g.stay(failed)
		}
		for bad-good > 1 {
			middle := (good + bad) / 2
			if _, failed := g.attempt(keysOf(changed[middle:])); failed != nil {
				bad, cause = middle, failed
			} else {
				good = middle
			}
		}
		g.spoil(changed[bad-1], cause)
		m, failed := g.attempt(nil)
		if failed == nil {
			return m
		}
		cause = failed
	}
	for _, key := range g.changed() {
		g.spoil(key, cause)
	}
	m, failed := g.attempt(nil)
	if failed != nil {
		return g.stay(failed)
	}
	return m
}

func (g *guard) spoil(key model.Key, cause any) {
	g.broken[key] = broken{object: g.now.of(key), good: g.before.of(key), reason: fmt.Sprint(cause)}
}

// stay returns the snapshot before this one again: it is no object that cannot be
// built from.
func (g *guard) stay(cause any) *Mesh {
	if g.prev == nil {
		panic(cause)
	}
	m := *g.prev
	m.Sequence++
	m.inputs.owed = g.change
	p := model.Problem{Reason: fmt.Sprintf(
		"building from the configuration fails with %q, whatever object is left out: what was in force before stays in force; report this", fmt.Sprint(cause))}
	if !slices.Contains(m.Problems, p) {
		m.Problems = append(slices.Clip(m.Problems), p)
	}
	return &m
}

// changed are the objects that are others than before, as far as the last
// attempt has read: the newest last.
func (g *guard) changed() []model.Key {
	created := map[model.Key]*model.Config{}
	note := func(key model.Key, now *model.Config) {
		was := g.before.of(key)
		if s, ok := g.broken[key]; was == now || ok && sameOrNone(s.object, now) {
			return
		}
		created[key] = cmp.Or(now, was)
	}
	for kind, list := range g.now.lists {
		before := map[model.Key]*model.Config{}
		for _, c := range g.before.lists[kind] {
			if c != nil {
				before[c.Key] = c
			}
		}
		for _, c := range list {
			if c == nil {
				continue
			}
			if _, read := g.before.read[c.Key]; read || before[c.Key] != c {
				note(c.Key, c)
			}
			delete(before, c.Key)
		}
		for key := range before { // gone
			note(key, nil)
		}
	}
	for key, c := range g.now.read {
		note(key, c)
	}
	return slices.SortedFunc(maps.Keys(created), func(a, b model.Key) int {
		return cmp.Or(created[a].Created.Compare(created[b].Created), strings.Compare(a.String(), b.String()))
	})
}

func keysOf(keys []model.Key) map[model.Key]bool {
	out := make(map[model.Key]bool, len(keys))
	for _, key := range keys {
		out[key] = true
	}
	return out
}

// sameOrNone reports whether two objects, each of which may be nil for none, say
// the same.
func sameOrNone(a, b *model.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a == b || a.Key == b.Key && sameSpec(a, b)
}

// sameSpec compares what two objects say. What cannot be compared differs.
func sameSpec(a, b *model.Config) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return maps.Equal(a.Labels, b.Labels) && a.Created.Equal(b.Created) && model.SameSpec(a.Spec, b.Spec)
}

// problems tell of the objects that cannot be built from.
func (i *inputs) problems() []model.Problem {
	var out []model.Problem
	for _, key := range slices.SortedFunc(maps.Keys(i.broken), func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) }) {
		s := i.broken[key]
		p := model.Problem{Object: key}
		what := "it is left out"
		if s.good != nil {
			what = "its last good version stays in force"
		}
		if s.object != nil {
			p.Source = s.object.Source
			p.Reason = fmt.Sprintf("building from this object fails with %q: %s until it is changed; change it, and report this with the object", s.reason, what)
		} else {
			p.Reason = fmt.Sprintf("building without this object, which is deleted, fails with %q: %s; create it again, and report this", s.reason, what)
		}
		out = append(out, p)
	}
	return out
}
