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

// An object with unforeseen content can make the code that builds a snapshot panic. To protect the
// rest of the mesh, Build finds that object among those that changed, uses its last good version or
// leaves it out, and reports a problem. The object is not tried again until it changes.

// inputs are the objects that a snapshot was built from. They are immutable.
type inputs struct {
	// lists are the objects by kind as last listed. read are the objects that were read
	// individually since then; nil means deleted.
	lists map[model.Kind][]*model.Config
	read  map[model.Key]*model.Config
	// broken are the objects that make the build panic.
	broken map[model.Key]broken
	// pending is the change that was not built yet.
	pending model.Change
	// byKey has the lists that of has read.
	byKey map[model.Kind]map[model.Key]*model.Config
}

// broken is an object that makes the build panic.
type broken struct {
	// object is nil if the deletion of the object causes the panic. good is the version to use
	// instead; nil means that the object is left out.
	object, good *model.Config
	reason       string
}

// of returns an object as used by the snapshot, or nil if it has none.
func (i *inputs) of(key model.Key) *model.Config {
	if c, ok := i.read[key]; ok {
		return c
	}
	list, ok := i.byKey[key.Kind]
	if !ok {
		list = make(map[model.Key]*model.Config, len(i.lists[key.Kind]))
		for _, c := range slices.Backward(i.lists[key.Kind]) { // the first one counts
			if c != nil {
				list[c.Key] = c
			}
		}
		if i.byKey == nil {
			i.byKey = map[model.Kind]map[model.Key]*model.Config{}
		}
		i.byKey[key.Kind] = list
	}
	return list[key]
}

// builder builds a snapshot, like build.
type builder func(prev *Mesh, in Input, change model.Change) *Mesh

// maxBroken limits the number of broken objects that one Build searches for. If there are more, all
// changed objects keep their previous version.
const maxBroken = 64

// guarded builds a snapshot and tolerates objects that make the build panic. It panics only if
// there is no previous snapshot and the build fails even without objects.
func guarded(prev *Mesh, in Input, change model.Change, build builder) *Mesh {
	g := &guard{
		prev: prev, in: in, change: change, build: build, broken: map[model.Key]broken{},
		now: inputs{lists: map[model.Kind][]*model.Config{}, read: map[model.Key]*model.Config{}},
	}
	if prev != nil {
		g.before = prev.inputs
		g.before.byKey = nil // written to while this snapshot is built
		g.change = change.Merge(g.before.pending)
		maps.Copy(g.broken, g.before.broken)
	}
	m, cause := g.attempt(nil)
	if cause == nil {
		return m
	}
	return g.search(cause)
}

// guard is the state of one Build.
type guard struct {
	prev   *Mesh
	in     Input
	change model.Change
	build  builder
	before inputs
	broken map[model.Key]broken
	// now are the objects read from the stores, once for all attempts.
	now inputs
}

func (g *guard) list(kind model.Kind) []*model.Config {
	list, ok := g.now.lists[kind]
	if !ok {
		list = g.in.List(kind)
		g.now.lists[kind] = list
		delete(g.now.byKey, kind)
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

// attempt builds once. It uses the previous version of the objects in held. If the build panics,
// cause is the value of the panic.
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

// keep adds the unchanged inputs of the previous snapshot to those that were read.
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

// instead returns the objects of a kind to build from, with broken and held objects replaced.
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
	for _, good := range instead { // build sorts them
		if good != nil {
			out = append(out, good)
		}
	}
	return out
}

// search finds the broken objects among those that changed, and builds without them.
func (g *guard) search(cause any) *Mesh {
	for range maxBroken {
		changed := g.changed()
		if len(changed) == 0 {
			break
		}
		// Binary search: the build succeeds with the first good changes and fails with the first
		// bad changes.
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

// stay returns the previous snapshot again, because the failure is not caused by a single object.
func (g *guard) stay(cause any) *Mesh {
	if g.prev == nil {
		panic(cause)
	}
	m := *g.prev
	m.Sequence++
	m.inputs.pending = g.change
	p := model.Problem{Reason: fmt.Sprintf(
		"building from the configuration fails with %q, whichever object is excluded: the previous configuration stays in force; report this", fmt.Sprint(cause))}
	if !slices.Contains(m.Problems, p) {
		m.Problems = append(slices.Clip(m.Problems), p)
	}
	return &m
}

// changed returns the objects that the last attempt read and that differ from the previous
// snapshot, newest last.
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
		for _, c := range list {
			if c != nil {
				note(c.Key, c)
			}
		}
		for _, c := range g.before.lists[kind] {
			if c != nil && g.now.of(c.Key) == nil { // deleted
				note(c.Key, nil)
			}
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

// sameOrNone reports whether two objects, each of which may be nil, are equal.
func sameOrNone(a, b *model.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a == b || a.Key == b.Key && sameSpec(a, b)
}

// sameSpec reports whether two objects have the same content. Objects that cannot be compared are
// different.
func sameSpec(a, b *model.Config) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return maps.Equal(a.Labels, b.Labels) && a.Created.Equal(b.Created) && model.SameSpec(a.Spec, b.Spec)
}

// problems returns a problem for each broken object.
func (i *inputs) problems() []model.Problem {
	var out []model.Problem
	for _, key := range slices.SortedFunc(maps.Keys(i.broken), func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) }) {
		s := i.broken[key]
		p := model.Problem{Object: key}
		what := "it is ignored"
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
