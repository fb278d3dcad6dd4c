// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
)

// EnvoyFilters is the index of EnvoyFilters by workload.
type EnvoyFilters struct {
	index    policyIndex[*patch.Filter]
	byKey    map[model.Key]parsedFilter
	all      []*model.Config
	problems []model.Problem
}

// parsedFilter is an object that was parsed, and its problems.
type parsedFilter struct {
	filter   *patch.Filter
	problems []model.Problem
}

func (e *EnvoyFilters) objects() []*model.Config {
	if e == nil {
		return nil
	}
	return e.all
}

// earlierFilters returns an index of the versions before the present ones, without objects.
func earlierFilters(earlier map[model.Key][]*model.Config, set settings) *EnvoyFilters {
	e := &EnvoyFilters{byKey: make(map[model.Key]parsedFilter, len(earlier))}
	for key, versions := range earlier {
		var last *patch.Filter
		for _, c := range versions {
			if spec, ok := c.Spec.(*networkingv1alpha3.EnvoyFilter); ok {
				last, _ = patch.Parse(c, spec, set.patches, last)
			}
		}
		e.byKey[key] = parsedFilter{filter: last}
	}
	return e
}

func newEnvoyFilters(old *EnvoyFilters, objs []*model.Config, set settings) *EnvoyFilters {
	e := &EnvoyFilters{index: policyIndex[*patch.Filter]{root: set.root}, byKey: make(map[model.Key]parsedFilter, len(objs)), all: objs}
	for _, obj := range objs {
		spec, ok := obj.Spec.(*networkingv1alpha3.EnvoyFilter)
		if !ok {
			continue
		}
		var parsed parsedFilter
		if old != nil {
			parsed = old.byKey[obj.Key]
		}
		if prev := parsed.filter; prev == nil || prev.Config != obj { // nothing else affects it: other limits build all indexes again
			parsed.filter, parsed.problems = patch.Parse(obj, spec, set.patches, prev)
		}
		e.byKey[obj.Key] = parsed
		e.problems = append(e.problems, parsed.problems...)
		e.index.add(obj.Namespace, filterTarget{spec}, parsed.filter, func(format string, args ...any) {
			e.problems = append(e.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		})
		for i, ref := range spec.GetTargetRefs() {
			if isService(ref) {
				e.problems = append(e.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(
					"spec.targetRefs[%d]: %s %q: only the waypoints of Istio's ambient mode are attached to services, so the object has no effect; use a workloadSelector",
					i, ref.GetKind(), ref.GetName())})
			}
		}
	}
	return e
}

// filterTarget implements [policyTarget].
type filterTarget struct {
	*networkingv1alpha3.EnvoyFilter
}

func (f filterTarget) GetSelector() *typev1beta1.WorkloadSelector {
	return &typev1beta1.WorkloadSelector{MatchLabels: f.GetWorkloadSelector().GetLabels()}
}

func (filterTarget) GetTargetRef() *typev1beta1.PolicyTargetReference { return nil }

// Spec returns an EnvoyFilter; nil if there is none.
func (e *EnvoyFilters) Spec(key model.Key) *networkingv1alpha3.EnvoyFilter {
	if e == nil || e.byKey[key].filter == nil {
		return nil
	}
	return e.byKey[key].filter.Spec
}

// For returns the patches of a proxy. EnvoyFilters of the root namespace apply to all proxies, those
// of others to the proxies of their own namespace.
func (e *EnvoyFilters) For(proxy *model.Proxy) patch.Patches {
	if e == nil || len(e.all) == 0 {
		return patch.Patches{}
	}
	return patch.Of(slices.Clone(e.index.of(proxy.Namespace, proxy.Labels, nil)), e.index.root, proxy)
}
