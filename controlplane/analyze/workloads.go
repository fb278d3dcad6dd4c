// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// workloads is the set of known workloads, with an index of their labels.
type workloads struct {
	all        []*Workload
	namespaces map[string]*labelIndex
	mesh       labelIndex
}

// labelIndex finds workloads by one pair of labels.
type labelIndex struct {
	all    []*Workload
	byPair map[labelPair][]*Workload
}

type labelPair struct{ key, value string }

func (x *labelIndex) add(w *Workload) {
	x.all = append(x.all, w)
	if x.byPair == nil {
		x.byPair = map[labelPair][]*Workload{}
	}
	for k, v := range w.Labels {
		x.byPair[labelPair{k, v}] = append(x.byPair[labelPair{k, v}], w)
	}
}

// candidates returns the workloads with the rarest pair of a selector.
func (x *labelIndex) candidates(selector map[string]string) []*Workload {
	if x == nil {
		return nil
	}
	list := x.all
	for k, v := range selector {
		if with := x.byPair[labelPair{k, v}]; len(with) < len(list) {
			list = with
		}
	}
	return list
}

// collectWorkloads returns the workloads of all parts of the input, each once.
func (a *analysis) collectWorkloads() *workloads {
	w := &workloads{namespaces: map[string]*labelIndex{}}
	seen := map[string]bool{}
	add := func(one Workload) {
		// Endpoints of several ports and services are one workload.
		key := one.Namespace + "/" + one.Name + "/" + labelText(one.Labels)
		if seen[key] {
			return
		}
		seen[key] = true
		w.add(&one)
	}
	for _, p := range a.Manifests.pods {
		add(Workload{Namespace: p.namespace, Name: p.name, Labels: p.labels})
	}
	each(a, model.WorkloadEntry, func(c *model.Config, spec *networkingv1alpha3.WorkloadEntry) {
		labels := maps.Clone(spec.GetLabels())
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, c.Labels)
		add(Workload{Namespace: c.Namespace, Name: c.Name, Labels: labels})
	})
	each(a, model.WorkloadGroup, func(c *model.Config, spec *networkingv1alpha3.WorkloadGroup) {
		labels := maps.Clone(spec.GetTemplate().GetLabels())
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, spec.GetMetadata().GetLabels())
		add(Workload{Namespace: c.Namespace, Name: c.Name, Labels: labels})
	})
	for _, svc := range a.Mesh.Services.Sorted {
		for _, ep := range a.endpoints(svc) {
			if ep.Namespace != "" && !svc.External {
				add(Workload{Namespace: ep.Namespace, Name: ep.Workload, Labels: ep.Labels})
			}
		}
	}
	named := map[objectName]bool{}
	for _, known := range w.all {
		named[objectName{known.Namespace, known.Name}] = true
	}
	for _, one := range a.Workloads {
		if !named[objectName{one.Namespace, one.Name}] { // a registry knows the labels better
			add(one)
		}
	}
	return w
}

func (w *workloads) add(one *Workload) {
	w.all = append(w.all, one)
	if w.namespaces[one.Namespace] == nil {
		w.namespaces[one.Namespace] = &labelIndex{}
	}
	w.namespaces[one.Namespace].add(one)
	w.mesh.add(one)
}

func (w *workloads) size() int { return len(w.all) }

// labelText returns a text that is the same for equal labels.
func labelText(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k + "=" + labels[k] + ",")
	}
	return strings.TrimSuffix(b.String(), ",")
}

// selected returns the workloads of a namespace that a selector matches. An empty namespace means all
// namespaces.
func (a *analysis) selected(namespace string, selector map[string]string) []*Workload {
	index := &a.workloads.mesh
	if namespace != "" {
		index = a.workloads.namespaces[namespace]
	}
	list := index.candidates(selector)
	if len(selector) == 0 {
		return list
	}
	var out []*Workload
	for _, w := range list {
		a.steps++
		if model.Selects(selector, w.Labels) {
			out = append(out, w)
		}
	}
	return out
}

// selects reports whether a selector matches a workload of a namespace.
func (a *analysis) selects(namespace string, selector map[string]string) bool {
	index := &a.workloads.mesh
	if namespace != "" {
		index = a.workloads.namespaces[namespace]
	}
	return slices.ContainsFunc(index.candidates(selector), func(w *Workload) bool {
		a.steps++
		return model.Selects(selector, w.Labels)
	})
}

// endpoints returns the endpoints of a service.
func (a *analysis) endpoints(svc *model.Service) []*model.Endpoint {
	set := a.Mesh.Endpoints.Of(svc.ServiceKey)
	if svc.Resolution.ByName() {
		set = a.Mesh.NamedEndpoints.Of(svc.ServiceKey)
	}
	if set == nil {
		return nil
	}
	return set.List
}

// scope returns the namespace whose workloads an object is for: the root namespace is for all.
func (a *analysis) scope(c *model.Config) string {
	if c.Namespace == a.root() {
		return ""
	}
	return c.Namespace
}

func (a *analysis) root() string {
	if root := a.Mesh.Config.GetRootNamespace(); root != "" {
		return root
	}
	return "istio-system"
}
