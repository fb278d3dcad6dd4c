// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Matched says where the patches of an EnvoyFilter have an effect.
type Matched struct {
	// Selected is the number of connected proxies that the object selects.
	Selected int
	// Idle is the number of patches that have no effect on any of them.
	Idle int
	// Text names the patches, the proxies with each version of the agent, and some resources.
	Text string
}

// Limits of Matched.Text.
const (
	maxPatchesNamed = 8
	maxVersions     = 4
	maxExamples     = 3
)

// patchedTypes are the types that EnvoyFilters change.
var patchedTypes = append(slices.Clone(configTypes), xds.TypeBootstrap)

// effect is where one patch has an effect.
type effect struct {
	proxies  int
	versions map[string]int
	names    []string // the first ones, sorted
}

func (e *effect) name(n string) {
	if i, found := slices.BinarySearch(e.names, n); !found && i < maxExamples {
		e.names = slices.Insert(e.names, i, n)
		e.names = e.names[:min(len(e.names), maxExamples)]
	}
}

// patching is a generator that knows what patches have an effect on.
type patching interface {
	Hits(*snapshot.Mesh, *model.Proxy, string) []patch.Hit
}

// hits returns the effects of patches, none if the generator panics.
func (s *Server) hits(mesh *snapshot.Mesh, proxy *model.Proxy, typeURL string) (out []patch.Hit) {
	defer func() {
		if recover() != nil { // tryGenerate reports it
			out = nil
		}
	}()
	if g, ok := s.gen.(patching); ok {
		out = g.Hits(mesh, proxy, typeURL)
	}
	return out
}

// Matched returns where the EnvoyFilters that select a connected proxy have an effect.
func (s *Server) Matched() map[model.Key]Matched {
	now := s.mesh.Load()
	if now == nil {
		return nil
	}
	selected := map[model.Key]int{}
	effects := map[*patch.Patch]*effect{}
	summaries := map[*patch.Hit]map[*patch.Patch]*effect{} // proxies share sets
	for _, proxy := range s.followers() {
		filters := now.EnvoyFilters.For(proxy).Filters()
		if len(filters) == 0 {
			continue
		}
		for _, f := range filters {
			selected[f.Config.Key]++
		}
		here := map[*patch.Patch]bool{}
		for _, typeURL := range patchedTypes {
			hits := s.hits(now.Mesh, proxy, typeURL)
			if len(hits) == 0 {
				continue
			}
			if summaries[&hits[0]] == nil {
				summaries[&hits[0]] = summarized(hits)
			}
			for p, e := range summaries[&hits[0]] {
				if effects[p] == nil {
					effects[p] = &effect{versions: map[string]int{}}
				}
				for _, n := range e.names {
					effects[p].name(n)
				}
				here[p] = true
			}
		}
		for p := range here {
			effects[p].proxies++
			effects[p].versions[cmp.Or(proxy.Agent, "unknown")]++
		}
	}
	byIndex := map[model.Key]map[int]*effect{}
	for p, e := range effects {
		key := p.Filter.Config.Key
		if byIndex[key] == nil {
			byIndex[key] = map[int]*effect{}
		}
		byIndex[key][p.Index] = e
	}
	out := make(map[model.Key]Matched, len(selected))
	for key, n := range selected {
		if spec := now.EnvoyFilters.Spec(key); spec != nil {
			out[key] = matched(spec, n, byIndex[key])
		}
	}
	return out
}

// followers returns the proxies that follow the configuration.
func (s *Server) followers() (out []*model.Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if _, follows := st.acks.standing(); follows && st.objects == nil {
			out = append(out, st.proxy)
		}
	}
	return out
}

func summarized(hits []patch.Hit) map[*patch.Patch]*effect {
	out := map[*patch.Patch]*effect{}
	for _, h := range hits {
		if out[h.Patch] == nil {
			out[h.Patch] = &effect{}
		}
		out[h.Patch].name(h.Resource)
	}
	return out
}

func matched(spec *networkingv1alpha3.EnvoyFilter, selected int, effects map[int]*effect) Matched {
	m := Matched{Selected: selected}
	var text []string
	for i, c := range spec.GetConfigPatches() {
		e := effects[i]
		if e == nil {
			m.Idle++
		}
		if i >= maxPatchesNamed {
			continue
		}
		what := fmt.Sprintf("%s (%s %s)", field.Index("spec.configPatches", i), c.GetApplyTo(), c.GetPatch().GetOperation())
		if e == nil {
			text = append(text, fmt.Sprintf("%s: none of %d proxies", what, selected))
			continue
		}
		text = append(text, fmt.Sprintf("%s: %d of %d proxies (%s), such as %s", what, e.proxies, selected, versions(e.versions), strings.Join(e.names, ", ")))
	}
	if more := len(spec.GetConfigPatches()) - maxPatchesNamed; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	m.Text = strings.Join(text, "; ")
	return m
}

// versions returns how many proxies have each version, the most frequent first.
func versions(count map[string]int) string {
	var names []string
	for v := range count {
		names = append(names, v)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(count[b]-count[a], strings.Compare(a, b)) })
	var text []string
	for _, v := range names[:min(len(names), maxVersions)] {
		text = append(text, fmt.Sprintf("%s: %d", field.Clip(v, field.MaxKeyText), count[v]))
	}
	if more := len(names) - maxVersions; more > 0 {
		text = append(text, fmt.Sprintf("%d more versions", more))
	}
	return strings.Join(text, ", ")
}
