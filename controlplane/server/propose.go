// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/discovery/debug"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// propose returns what would follow prev after changes. As in a push, objects are converted first.
func (s *Server) propose(prev *snapshot.Mesh, p debug.Proposal) debug.Outcome {
	settings, change := *s.settings.Current(), p.Objects
	settings.Mesh, settings.Networks = cmp.Or(p.Mesh, settings.Mesh), cmp.Or(p.Networks, settings.Networks)
	in := s.input(&settings)
	if len(p.Services) > 0 && in.Platform != nil {
		in.Platform = pastPlatform{in.Platform, p.Services}
	}
	what := model.NewChange(slices.AppendSeq(slices.Collect(maps.Keys(change)), maps.Keys(p.Services))...)
	what.All = p.Mesh != nil || p.Networks != nil // as in a change of the settings
	keys := slices.SortedFunc(maps.Keys(change), model.Key.Compare)
	list := func(kind model.Kind) []*model.Config {
		out := slices.DeleteFunc(slices.Clone(s.objects.stored(kind)), func(c *model.Config) bool {
			_, changed := change[c.Key]
			return changed
		})
		for _, key := range keys {
			if key.Kind == kind && change[key] != nil {
				out = append(out, change[key])
			}
		}
		return out
	}
	out := debug.Outcome{Before: s.objects.converted()}
	if s.objects.conversion != nil {
		out.After, what = out.Before.Next(s.conversionInput(list, in.Platform, settings.Mesh), what)
		out.Unread = s.unread(out)
	}
	in.List = func(kind model.Kind) []*model.Config { return withConverted(list(kind), out.After, kind) }
	in.Get = func(key model.Key) *model.Config {
		c, changed := change[key]
		if !changed {
			c = s.objects.store.Get(key)
		}
		return cmp.Or(c, out.After.Get(key))
	}
	out.Mesh = snapshot.Build(prev, in, what)
	out.Mesh.Problems = append(blame(out.After, out.Mesh.Problems), s.uninjected()...)
	return out
}

// unread returns the ConfigMaps with roots that only the conversion after a change names: those of a
// cluster are read once an object in force names them.
func (s *Server) unread(o debug.Outcome) (names []string) {
	if s.objects.rootMaps == nil {
		return nil
	}
	for _, n := range o.After.ConfigMaps() {
		if o.Before == nil || !o.Before.RefersTo(n.Namespace, n.Name) {
			names = append(names, n.String())
		}
	}
	return names
}
