// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// maxDiffNames is how many names of resources, or of listeners that drain, an answer contains for each
// proxy and type.
const maxDiffNames = 50

// comparedTypes are the types that what-if compares.
var comparedTypes = append(slices.Clone(xds.Types), xds.TypeExtension)

// whatIf compares the configuration of all proxies with what it would be if objects changed.
func (d debugger) whatIf() (answerOf, error) {
	if d.mesh.Services == nil || d.cfg.Preview == nil || d.cfg.Propose == nil {
		return answerOf{}, errors.New("there is no snapshot of services yet")
	}
	out := report.WhatIf{Replica: d.cfg.Replica, Objects: []report.Proposed{}, Proxies: []report.Affected{}, Flips: []report.Flipped{}}
	change, warnings, err := d.proposal(&out)
	if err != nil {
		return answerOf{}, err
	}
	then := d.cfg.Propose(d.mesh, Proposal{Objects: change})
	addStatuses(&out, then, change)
	c := comparison{
		debugger: d, mesh: then.Mesh, preview: d.cfg.Preview(),
		memo: map[setPair]*setDiff{}, chains: map[[2]*xds.Resource]bool{}, alike: map[string]int{}, fresh: map[problemKey]model.Problem{}, gone: map[problemKey]model.Problem{},
	}
	c.streams = slices.DeleteFunc(d.source.Streams(), func(st *Stream) bool { return st.Objects || !st.Follows })
	slices.SortFunc(c.streams, func(a, b *Stream) int {
		return cmp.Or(strings.Compare(a.Proxy.ID, b.Proxy.ID), cmp.Compare(a.Number, b.Number))
	})
	for _, st := range c.streams {
		select {
		case <-d.ended: // thousands of proxies take seconds
			return answerOf{}, errEnded
		default:
		}
		out.All++
		after := c.proxy(st, &out)
		if id := d.query.Get("proxyID"); id == st.Proxy.ID && out.Static == nil {
			static, err := xds.Static(after, xds.WithoutModules)
			if err == nil {
				out.Static, err = xds.WithoutScripts(static)
			}
			if err != nil {
				return answerOf{}, err
			}
		}
	}
	slices.SortFunc(out.Proxies, func(a, b report.Affected) int { return strings.Compare(a.Proxy, b.Proxy) })
	if err := c.addFlips(change, &out); err != nil {
		return answerOf{}, err
	}
	c.addProblems(d.mesh.Problems, c.mesh.Problems)
	c.addProblems(nil, warnings)
	out.Problems, out.Solved = sorted(c.fresh), sorted(c.gone)
	return answerOf{json: out}, nil
}

// proposal returns the objects of the form, nil for those to delete, and warnings about them.
func (d debugger) proposal(out *report.WhatIf) (change map[model.Key]*model.Config, warnings []model.Problem, err error) {
	change = map[model.Key]*model.Config{}
	for i, text := range d.query["objects"] {
		source := "standard input"
		if sources := d.query["source"]; i < len(sources) {
			source = sources[i]
		}
		objects, problems, skipped := codec.DecodeManifests(d.ended, source, []byte(text), d.query.Get("namespace"))
		out.Skipped += skipped
		for _, p := range problems {
			if !p.Warning {
				return nil, nil, errors.New(p.String())
			}
			warnings = append(warnings, p)
		}
		for _, c := range objects {
			if !snapshot.InForce(c.Kind) {
				return nil, nil, fmt.Errorf("%s: objects of the kind %s change nothing for proxies: remove the object", c.Source, c.Kind)
			}
			if !slices.ContainsFunc(d.cfg.Objects.Schemas(), func(s schema.Schema) bool { return s.Kind == c.Kind }) {
				return nil, nil, fmt.Errorf("%s: the control plane does not read objects of the kind %s (PILOT_ENABLE_GATEWAY_API): remove the object", c.Source, c.Kind)
			}
			change[c.Key] = c
		}
	}
	if len(change) == 0 {
		return nil, nil, errors.New("no objects are proposed: name their files with -f FILE")
	}
	now := time.Now()
	for _, key := range slices.SortedFunc(maps.Keys(change), model.Key.Compare) {
		c, stored := change[key], d.cfg.Objects.Get(key)
		p := report.Proposed{Ref: refOf(key), Source: c.Source, Action: "updated"}
		switch {
		case d.query.Get("delete") == "true" && stored == nil:
			return nil, nil, fmt.Errorf("%s: %s does not exist, so it cannot be deleted", c.Source, key)
		case d.query.Get("delete") == "true":
			change[key], p.Action = nil, "deleted"
		case stored == nil:
			c.Created, p.Action = now, "created"
		default:
			// As in a store: the order of objects depends on their age.
			c.Created, c.From = stored.Created, stored.From
			if model.SameSpec(stored.Spec, c.Spec) && maps.Equal(stored.Annotations, c.Annotations) {
				p.Action = "unchanged"
			}
		}
		out.Objects = append(out.Objects, p)
	}
	return change, warnings, nil
}

// comparison compares two states of the mesh.
type comparison struct {
	debugger
	mesh    *snapshot.Mesh // that would follow
	preview Generator
	streams []*Stream // of proxies, by name
	memo    map[setPair]*setDiff
	chains  map[[2]*xds.Resource]bool // whether two listeners differ in filter chains only
	// fresh are the problems that appear, and gone those that disappear.
	fresh, gone map[problemKey]model.Problem
	// kept are the proxies at which requests are tried, alike their number by workload, and
	// unkept the number of other affected proxies.
	kept   []affected
	alike  map[string]int
	unkept int
}

// setPair are the sets of a type before and after; many proxies share them.
type setPair struct {
	before, after *xds.Set
	// clusters is the difference of the clusters, for endpoints; nil if there is none.
	clusters *setDiff
}

type setDiff struct {
	report.TypeDiff
	changed       []*xds.Resource
	whole, chains []string // listeners that drain
}

type problemKey struct {
	object model.Key
	reason string
}

func problemKeyOf(p model.Problem) problemKey { return problemKey{p.Object, p.Reason} }

// proxy compares the configuration of a proxy, and returns that after the change.
func (c *comparison) proxy(st *Stream, out *report.WhatIf) func(typeURL string) *xds.Set {
	olds, sets, a := map[string]*xds.Set{}, map[string]*xds.Set{}, report.Affected{Proxy: st.Proxy.ID, Envoy: st.Proxy.Envoy}
	digest := fnv.New64a()
	var clusters *setDiff // nil if they do not change
	for _, typeURL := range comparedTypes {
		before, after := c.source.Generate(c.debugger.mesh, st.Proxy, typeURL), c.preview.Generate(c.mesh, st.Proxy, typeURL)
		olds[typeURL], sets[typeURL] = before, after
		_, _ = digest.Write([]byte(after.Version + " ")) // never fails
		c.addProblems(before.Problems, after.Problems)
		pair := setPair{before: before, after: after}
		if typeURL == xds.TypeEndpoint {
			pair.clusters = clusters
		}
		if before.Version == after.Version && pair.clusters == nil {
			continue
		}
		if c.memo[pair] == nil {
			c.memo[pair] = c.newDiff(typeURL, pair)
		}
		diff := *c.memo[pair]
		if typeURL == xds.TypeCluster {
			clusters = c.memo[pair]
		}
		if diff.Added+diff.Changed+diff.Removed+diff.Repeated == 0 {
			continue
		}
		if typeURL == xds.TypeListener {
			a.Drained, a.DrainedAll = diff.whole[:min(len(diff.whole), maxDiffNames)], len(diff.whole)
			a.ChainsDrained, a.ChainsDrainedAll = diff.chains[:min(len(diff.chains), maxDiffNames)], len(diff.chains)
		}
		diff.Type = cmp.Or(st.nameOf(typeURL), diff.Type)
		if !st.Delta {
			diff.Bytes = 0
			for _, r := range after.Resources {
				diff.Bytes += len(r.Any) // all of them are sent again
			}
		}
		a.Types = append(a.Types, diff.TypeDiff)
	}
	if len(a.Types) > 0 {
		a.Digest = strconv.FormatUint(digest.Sum64(), 16)
		out.Proxies = append(out.Proxies, a)
		c.keep(affected{st, olds, sets})
	}
	return func(typeURL string) *xds.Set { return sets[typeURL] }
}

// newDiff compares two sets.
func (c *comparison) newDiff(typeURL string, pair setPair) *setDiff {
	before, after := pair.before, pair.after
	d := &setDiff{TypeDiff: report.TypeDiff{Type: typeURL[strings.LastIndexByte(typeURL, '.')+1:], Names: []string{}}}
	name := func(sign, name string) {
		if len(d.Names) < maxDiffNames {
			d.Names = append(d.Names, sign+name)
		}
	}
	var removed []string
	d.changed, removed = xds.Diff(before, after)
	for _, r := range d.changed {
		d.Bytes += len(r.Any)
		old := before.Get(r.Name)
		if old == nil {
			d.Added++
			name("+", r.Name)
			continue
		}
		d.Changed++
		name("~", r.Name)
		switch {
		case typeURL != xds.TypeListener:
		case c.chainsOnly(old, r):
			d.chains = append(d.chains, r.Name)
		default:
			d.whole = append(d.whole, r.Name)
		}
	}
	d.Removed = len(removed)
	for _, n := range removed {
		name("-", n)
	}
	if typeURL == xds.TypeListener {
		d.whole = append(d.whole, removed...)
	}
	if pair.clusters != nil {
		d.repeat(pair.clusters.changed, before, after)
	}
	return d
}

// repeat adds the endpoints of changed clusters, which are sent again even if they are the same.
func (d *setDiff) repeat(clusters []*xds.Resource, before, after *xds.Set) {
	for _, c := range clusters {
		if r := after.Get(c.Name); r != nil && xds.Same(before.Get(c.Name), r) {
			d.Repeated++
			d.Bytes += len(r.Any)
		}
	}
}

// chainsOnly is sameButChains, computed once: many proxies share listeners.
func (c *comparison) chainsOnly(a, b *xds.Resource) bool {
	pair := [2]*xds.Resource{a, b}
	same, known := c.chains[pair]
	if !known {
		same = sameButChains(a, b)
		c.chains[pair] = same
	}
	return same
}

// sameButChains reports whether two listeners differ in filter chains only: Envoy then keeps the
// connections of the other chains.
func sameButChains(a, b *xds.Resource) bool {
	var both [2]*listenerv3.Listener
	for i, r := range []*xds.Resource{a, b} {
		both[i] = &listenerv3.Listener{}
		if r.UnmarshalTo(both[i]) != nil {
			return false
		}
		both[i].FilterChains, both[i].DefaultFilterChain = nil, nil
	}
	return proto.Equal(both[0], both[1])
}

// addProblems adds the problems that only one of two lists contains.
func (c *comparison) addProblems(before, after []model.Problem) {
	add := func(to map[problemKey]model.Problem, list, other []model.Problem) {
		has := map[problemKey]bool{}
		for _, p := range other {
			has[problemKeyOf(p)] = true
		}
		for _, p := range list {
			if !has[problemKeyOf(p)] {
				to[problemKeyOf(p)] = p
			}
		}
	}
	if len(before) > 0 || len(after) > 0 {
		add(c.fresh, after, before)
		add(c.gone, before, after)
	}
}

// sorted returns problems by object and text.
func sorted(problems map[problemKey]model.Problem) (out []report.Problem) {
	for _, p := range problems {
		out = append(out, report.Problem{Object: refOf(p.Object), Source: p.Source, Reason: p.Reason, Warning: p.Warning})
	}
	slices.SortFunc(out, func(a, b report.Problem) int {
		return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.Reason, b.Reason))
	})
	return out
}
