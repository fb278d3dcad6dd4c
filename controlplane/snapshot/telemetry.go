// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"

	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Telemetry is one Telemetry object.
type Telemetry struct {
	Config *model.Config
	Spec   *telemetryv1alpha1.Telemetry
}

// Telemetries is the index of Telemetry objects by workload.
type Telemetries struct {
	index    policyIndex[*Telemetry]
	byKey    map[model.Key]*Telemetry
	all      []*model.Config
	problems []model.Problem
}

func (t *Telemetries) objects() []*model.Config {
	if t == nil {
		return nil
	}
	return t.all
}

func newTelemetries(old *Telemetries, objs []*model.Config, set settings) *Telemetries {
	t := &Telemetries{index: policyIndex[*Telemetry]{root: set.root}, byKey: make(map[model.Key]*Telemetry, len(objs)), all: objs}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*telemetryv1alpha1.Telemetry)
		if !ok {
			continue
		}
		report := func(format string, args ...any) {
			t.problems = append(t.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		}
		entry := &Telemetry{Config: obj, Spec: spec}
		if old != nil && old.byKey[obj.Key] != nil && old.byKey[obj.Key].Config == obj {
			entry = old.byKey[obj.Key]
		}
		t.byKey[obj.Key] = entry
		for i, ref := range targetRefs(spec) {
			if isService(ref) {
				report("spec.targetRefs[%d]: %s %q: only the waypoints of Istio's ambient mode are attached to services, so the object has no effect; use a selector",
					i, ref.GetKind(), ref.GetName())
			}
		}
		t.index.add(obj.Namespace, spec, entry, report)
	}
	for _, ns := range t.index.namespaces {
		for _, loser := range ns.whole[min(1, len(ns.whole)):] {
			t.problems = append(t.problems, ns.whole[0].Hides(loser))
		}
	}
	slices.SortStableFunc(t.problems, func(a, b model.Problem) int { return a.Object.Compare(b.Object) })
	return t
}

// Hides returns the problem of an object that has no effect for a workload because t is older.
func (t *Telemetry) Hides(loser *Telemetry) model.Problem {
	return model.Problem{
		Object: loser.Config.Key, Source: loser.Config.Source,
		Reason: fmt.Sprintf("has no effect where Telemetry %s applies, which is older and for the same workloads: merge the two, or remove one", t.Config.Key.Name),
	}
}

// For returns the objects that apply to a workload, at most one of each level: the root namespace,
// its own namespace, the workload. Later ones take precedence. It also returns the objects that
// select the workload but are newer than the one that applies.
func (t *Telemetries) For(namespace string, labels map[string]string) (levels, hidden []*Telemetry) {
	if len(t.all) == 0 {
		return nil, nil
	}
	if root := t.index.namespaces[t.index.root]; root != nil {
		levels = append(levels, root.whole[:min(1, len(root.whole))]...)
	}
	own := t.index.namespaces[namespace]
	if own == nil {
		return levels, nil
	}
	if namespace != t.index.root {
		levels = append(levels, own.whole[:min(1, len(own.whole))]...)
	}
	selecting := slices.Concat(own.selected.matching(labels), own.gateways.matching(labels))
	slices.SortStableFunc(selecting, func(a, b *Telemetry) int { return model.Older(a.Config, b.Config) })
	selecting = slices.Compact(selecting) // one may have several targets
	n := min(1, len(selecting))
	return append(levels, selecting[:n]...), selecting[n:]
}
