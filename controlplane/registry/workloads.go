// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// workloads finds the WorkloadEntry objects of a selector without trying
// each: it keeps an index for each label key that selectors use.
type workloads struct {
	byNamespace map[string][]target
	byLabel     map[labelKey]map[string][]target
}

type labelKey struct{ namespace, key string }

func newWorkloads(configs []*model.Config) *workloads {
	w := &workloads{byNamespace: map[string][]target{}, byLabel: map[labelKey]map[string][]target{}}
	for _, c := range configs {
		if c == nil {
			continue
		}
		we, ok := c.Spec.(*networkingv1alpha3.WorkloadEntry)
		if !ok || we == nil {
			continue
		}
		labels := we.GetLabels()
		if len(c.Labels) > 0 {
			// The labels of the object win over those of its spec.
			labels = make(map[string]string, len(we.GetLabels())+len(c.Labels))
			maps.Copy(labels, we.GetLabels())
			maps.Copy(labels, c.Labels)
		}
		w.byNamespace[c.Namespace] = append(w.byNamespace[c.Namespace],
			target{entry: we, labels: labels, namespace: c.Namespace, object: c})
	}
	return w
}

// selected gives the workloads of a namespace that have all the labels.
func (w *workloads) selected(namespace string, selector map[string]string) []target {
	candidates := w.byNamespace[namespace]
	if len(selector) > 0 {
		key := slices.Min(slices.Collect(maps.Keys(selector)))
		candidates = w.index(labelKey{namespace, key})[selector[key]]
	}
	var out []target
	for _, t := range candidates {
		if model.Selects(selector, t.labels) {
			out = append(out, t)
		}
	}
	return out
}

func (w *workloads) index(k labelKey) map[string][]target {
	if known, ok := w.byLabel[k]; ok {
		return known
	}
	index := map[string][]target{}
	for _, t := range w.byNamespace[k.namespace] {
		if v, ok := t.labels[k.key]; ok {
			index[v] = append(index[v], t)
		}
	}
	w.byLabel[k] = index
	return index
}
