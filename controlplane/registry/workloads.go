// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The labels of Istio that configure an endpoint.
const (
	tlsModeLabel  = "security.istio.io/tlsMode"
	localityLabel = "istio-locality"
)

// workloads are the workloads by namespace. A namespace must be copied before it is modified.
type workloads map[string]*namespace

// namespace is the set of workloads of a namespace, with an index of the label keys that selectors
// use. The index avoids comparing a selector with every workload.
type namespace struct {
	all    map[model.Key]*Workload
	byPair map[pair][]*Workload
	keys   map[string]bool // label keys of the index; shared with all versions
}

type pair struct{ key, value string }

// pairOf returns the label pair under which a selector is indexed. The selector must not be empty.
func pairOf(selector map[string]string) pair {
	key := slices.Min(slices.Collect(maps.Keys(selector)))
	return pair{key, selector[key]}
}

// of returns the workloads of a namespace, which it creates if needed; keys are the label keys to
// index.
func (w workloads) of(name string, keys map[string]bool) *namespace {
	n := w[name]
	if n == nil {
		n = &namespace{all: map[model.Key]*Workload{}, byPair: map[pair][]*Workload{}, keys: keys}
		w[name] = n
	}
	return n
}

// clone returns a copy that can be modified.
func (n *namespace) clone() *namespace {
	return &namespace{all: maps.Clone(n.all), byPair: maps.Clone(n.byPair), keys: n.keys}
}

// set replaces the workload with the given key; a nil workload removes it.
func (n *namespace) set(key model.Key, w *Workload) {
	if before := n.all[key]; before != nil {
		for p := range n.pairs(before) {
			list := slices.DeleteFunc(slices.Clone(n.byPair[p]), func(o *Workload) bool { return o == before })
			if n.byPair[p] = list; len(list) == 0 {
				delete(n.byPair, p)
			}
		}
		delete(n.all, key)
	}
	if w == nil {
		return
	}
	n.all[key] = w
	for p := range n.pairs(w) {
		n.byPair[p] = append(slices.Clip(n.byPair[p]), w)
	}
}

// add adds a new workload. The namespace must not be shared yet.
func (n *namespace) add(w *Workload) {
	n.all[w.Object] = w
	for p := range n.pairs(w) {
		n.byPair[p] = append(n.byPair[p], w)
	}
}

// pairs returns the indexed labels of a workload.
func (n *namespace) pairs(w *Workload) func(func(pair) bool) {
	return func(yield func(pair) bool) {
		for k, v := range w.Labels {
			if n.keys[k] && !yield(pair{k, v}) {
				return
			}
		}
	}
}

// selected returns the workloads that match the selector, oldest first. It includes pods only if
// pods is true.
func (n *namespace) selected(selector map[string]string, pods bool) []*Workload {
	if n == nil {
		return nil
	}
	var out []*Workload
	take := func(w *Workload) {
		if model.Selects(selector, w.Labels) && (pods || w.Object.Kind != model.KubernetesPod) {
			out = append(out, w)
		}
	}
	if len(selector) == 0 {
		for _, w := range n.all {
			take(w)
		}
	} else {
		for _, w := range n.byPair[pairOf(selector)] {
			take(w)
		}
	}
	slices.SortFunc(out, olderWorkload)
	return out
}

// workloadOf returns the workload of a WorkloadEntry, or nil if the object is not a WorkloadEntry.
func workloadOf(c *model.Config) *Workload {
	if c == nil {
		return nil
	}
	we, ok := c.Spec.(*networkingv1alpha3.WorkloadEntry)
	if !ok || we == nil {
		return nil
	}
	labels := we.GetLabels()
	if len(c.Labels) > 0 {
		// The labels of the object take precedence over those of its spec.
		labels = make(map[string]string, len(we.GetLabels())+len(c.Labels))
		maps.Copy(labels, we.GetLabels())
		maps.Copy(labels, c.Labels)
	}
	w := entryWorkload(we, labels, c.Namespace)
	w.Object, w.Source, w.Created = c.Key, c.Source, c.Created
	return w
}

// entryWorkload returns the workload for a WorkloadEntry message with the given labels.
func entryWorkload(we *networkingv1alpha3.WorkloadEntry, labels map[string]string, namespace string) *Workload {
	return &Workload{
		Address: we.GetAddress(), Ports: we.GetPorts(), Labels: labels, Namespace: namespace,
		ServiceAccount: we.GetServiceAccount(), Network: cmp.Or(we.GetNetwork(), labels[networkLabel]),
		// Label values cannot contain slashes, so the label uses dots instead.
		Locality: cmp.Or(we.GetLocality(), strings.ReplaceAll(labels[localityLabel], ".", "/")),
		Weight:   max(we.GetWeight(), 1), MutualTLS: mutualTLS(labels, we.GetServiceAccount()),
	}
}

// mutualTLS reports whether an endpoint accepts mesh mutual TLS: the label tlsMode decides,
// otherwise whether it has a service account.
func mutualTLS(labels map[string]string, serviceAccount string) bool {
	if mode, ok := labels[tlsModeLabel]; ok {
		return mode == "istio"
	}
	return serviceAccount != ""
}
