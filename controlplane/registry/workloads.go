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

// The labels of Istio that say something about an endpoint.
const (
	tlsModeLabel  = "security.istio.io/tlsMode"
	localityLabel = "istio-locality"
)

// workloads are the workloads by namespace. A namespace is copied before it is
// altered.
type workloads map[string]*namespace

// namespace finds the workloads of a selector without trying each: it keeps an
// index for the label keys that selectors use.
type namespace struct {
	all    map[model.Key]*Workload
	byPair map[pair][]*Workload
	keys   map[string]bool // of labels; shared with all versions
}

type pair struct{ key, value string }

// pairOf returns the one pair of a selector that is enough to find it again. The
// selector is not empty.
func pairOf(selector map[string]string) pair {
	key := slices.Min(slices.Collect(maps.Keys(selector)))
	return pair{key, selector[key]}
}

// of returns the workloads of a namespace; keys are the label keys to index.
func (w workloads) of(name string, keys map[string]bool) *namespace {
	n := w[name]
	if n == nil {
		n = &namespace{all: map[model.Key]*Workload{}, byPair: map[pair][]*Workload{}, keys: keys}
		w[name] = n
	}
	return n
}

// clone returns a copy in which a namespace may be altered.
func (n *namespace) clone() *namespace {
	return &namespace{all: maps.Clone(n.all), byPair: maps.Clone(n.byPair), keys: n.keys}
}

// set replaces the workload of a key; nil removes it.
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

// add enters a workload that is not there into a namespace that nobody else has
// yet.
func (n *namespace) add(w *Workload) {
	n.all[w.Object] = w
	for p := range n.pairs(w) {
		n.byPair[p] = append(n.byPair[p], w)
	}
}

// pairs returns the labels of a workload that the index has.
func (n *namespace) pairs(w *Workload) func(func(pair) bool) {
	return func(yield func(pair) bool) {
		for k, v := range w.Labels {
			if n.keys[k] && !yield(pair{k, v}) {
				return
			}
		}
	}
}

// selected returns the workloads that have all the labels, the oldest first.
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

// workloadOf reads a WorkloadEntry; nil if it is none.
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
		// The labels of the object win over those of its spec.
		labels = make(map[string]string, len(we.GetLabels())+len(c.Labels))
		maps.Copy(labels, we.GetLabels())
		maps.Copy(labels, c.Labels)
	}
	w := entryWorkload(we, labels, c.Namespace)
	w.Object, w.Source, w.Created = c.Key, c.Source, c.Created
	return w
}

// entryWorkload reads what a person wrote of a workload.
func entryWorkload(we *networkingv1alpha3.WorkloadEntry, labels map[string]string, namespace string) *Workload {
	return &Workload{
		Address: we.GetAddress(), Ports: we.GetPorts(), Labels: labels, Namespace: namespace,
		ServiceAccount: we.GetServiceAccount(), Network: cmp.Or(we.GetNetwork(), labels[networkLabel]),
		// A label value has no slashes, so dots stand for them.
		Locality: cmp.Or(we.GetLocality(), strings.ReplaceAll(labels[localityLabel], ".", "/")),
		Weight:   max(we.GetWeight(), 1), MutualTLS: mutualTLS(labels, we.GetServiceAccount()),
	}
}

// mutualTLS decides whether an endpoint speaks mesh mutual TLS: its label
// says so, or else an identity of its own does.
func mutualTLS(labels map[string]string, serviceAccount string) bool {
	if mode, ok := labels[tlsModeLabel]; ok {
		return mode == "istio"
	}
	return serviceAccount != ""
}
