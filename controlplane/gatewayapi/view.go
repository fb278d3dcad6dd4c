// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The kinds in a [model.Change] that mean that the labels of a namespace, a Secret, or the roots in
// a ConfigMap have changed. They are not configuration objects.
const (
	KubernetesNamespace model.Kind = "Namespace"
	KubernetesSecret    model.Kind = "Secret"
	KubernetesConfigMap model.Kind = "ConfigMap"
)

// View caches the newest conversion. Update must be called from one goroutine.
type View struct{ result atomic.Pointer[Result] }

// Result returns the newest conversion, or nil before the first Update.
func (v *View) Result() *Result { return v.result.Load() }

// DependsOn reports whether a change affects the newest conversion.
func (v *View) DependsOn(change model.Change) bool { return v.Result().dependsOn(change) }

// Update replaces the newest conversion by the one that [Result.Next] returns.
func (v *View) Update(in Input, change model.Change) model.Change {
	next, change := v.Result().Next(in, change)
	v.result.Store(next)
	return change
}

// Next converts the objects again if a change affects r, which may be nil. It returns the change
// plus the converted objects that differ. Unchanged objects keep their pointers.
func (r *Result) Next(in Input, change model.Change) (*Result, model.Change) {
	if !r.dependsOn(change) {
		return r, change
	}
	next := Convert(in)
	next.byKey = map[model.Key]*model.Config{}
	changed := map[model.Key]struct{}{}
	for _, list := range next.Objects {
		for i, o := range list {
			old := r.Get(o.Key)
			if old != nil && old.Source == o.Source && old.Created.Equal(o.Created) && maps.Equal(old.Annotations, o.Annotations) &&
				maps.Equal(old.Labels, o.Labels) && slices.Equal(old.From, o.From) && model.SameSpec(old.Spec, o.Spec) {
				list[i] = old
			} else {
				changed[o.Key] = struct{}{}
			}
			next.byKey[o.Key] = list[i]
		}
	}
	if r != nil {
		for key := range r.byKey {
			if next.byKey[key] == nil {
				changed[key] = struct{}{}
			}
		}
	}
	return next, change.Merge(model.Change{Keys: changed})
}

// Get returns a converted object, or nil if it does not exist. r may be nil.
func (r *Result) Get(key model.Key) *model.Config {
	if r == nil {
		return nil
	}
	return r.byKey[key]
}

// dependsOn reports whether a change affects a converted object or another input of the
// conversion. Everything affects a nil Result.
func (r *Result) dependsOn(change model.Change) bool {
	if r == nil || change.Touches(Kinds()...) {
		return true
	}
	for key := range change.Keys {
		switch n := (name{key.Namespace, key.Name}); key.Kind {
		case model.KubernetesService:
			if r.services[n] {
				return true
			}
		case KubernetesSecret:
			if r.secrets[n] {
				return true
			}
		case KubernetesConfigMap:
			if _, used := r.configMaps[n]; used {
				return true
			}
		case model.ServiceEntry:
			if r.entries {
				return true
			}
		case KubernetesNamespace:
			if r.namespaces {
				return true
			}
		case model.MeshConfigKind:
			if key.Name != "roots" {
				return true
			}
		}
	}
	return false
}

// Blame assigns problems of converted objects to the original objects. It drops problems about
// missing references, which the status of the original reports.
func (r *Result) Blame(problems []model.Problem) []model.Problem {
	out := make([]model.Problem, 0, len(problems))
	said := make(map[model.Problem]bool, len(problems))
	for _, p := range problems {
		if origin, converted := r.Origin[p.Object]; converted {
			if p.Dangling {
				continue
			}
			p.Object = origin
		}
		if !said[p] {
			said[p] = true
			out = append(out, p)
		}
	}
	return out
}
