// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"fmt"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SelectNamespaces restricts all clusters to the namespaces that match at least one of the
// selectors; no selectors means all namespaces. Other namespaces are still followed, so that the
// selection can change at any time. If it returns an error, the selection is unchanged.
func (r *Registry) SelectNamespaces(selectors []*meshv1alpha1.LabelSelector) error {
	selects, err := namespaceSelector(selectors)
	if err != nil {
		return err
	}
	r.alter(func() {
		r.selects = selects
		for _, m := range r.members {
			m.setSelects(selects)
		}
		clear(r.merged)
	})
	return nil
}

// namespaceSelector returns a function for discoverySelectors; nil means all namespaces.
func namespaceSelector(selectors []*meshv1alpha1.LabelSelector) (func(map[string]string) bool, error) {
	if len(selectors) == 0 {
		return nil, nil
	}
	anyOf := make([]labels.Selector, len(selectors))
	for i, s := range selectors {
		like := &metav1.LabelSelector{MatchLabels: s.GetMatchLabels()}
		for _, e := range s.GetMatchExpressions() {
			like.MatchExpressions = append(like.MatchExpressions, metav1.LabelSelectorRequirement{
				Key: e.GetKey(), Operator: metav1.LabelSelectorOperator(e.GetOperator()), Values: e.GetValues(),
			})
		}
		var err error
		if anyOf[i], err = metav1.LabelSelectorAsSelector(like); err != nil {
			return nil, fmt.Errorf("discoverySelectors[%d] of the mesh config cannot be read; write a label selector of Kubernetes: %w", i, err)
		}
	}
	return func(of map[string]string) bool {
		for _, s := range anyOf {
			if s.Matches(labels.Set(of)) {
				return true
			}
		}
		return false
	}, nil
}

// selected reports whether a namespace is included.
func (m *member) selected(namespace string) bool {
	if m.selects == nil {
		return true
	}
	record := m.namespaces[namespace]
	return record != nil && m.selects(record.labels)
}

// setNamespace sets a Namespace; nil removes it. own is the namespace of the control plane, whose
// label sets the network of the cluster.
func (m *member) setNamespace(name string, r *namespaceRecord, own string) (changed bool) {
	was := m.selected(name)
	if r == nil {
		delete(m.namespaces, name)
	} else {
		m.namespaces[name] = r
	}
	if m.selected(name) != was {
		changed = m.turn(name)
	}
	if name == own && own != "" {
		network := ""
		if r != nil {
			network = r.labels[networkLabel]
		}
		changed = m.setNetwork(network) || changed
	}
	return changed
}

// setSelects sets the selection of namespaces.
func (m *member) setSelects(selects func(map[string]string) bool) {
	before := m.selects
	in := map[string]bool{}
	for n := range m.services {
		in[n.Namespace] = true
	}
	for n := range m.pods {
		in[n.Namespace] = true
	}
	for namespace := range in {
		m.selects = before
		was := m.selected(namespace)
		m.selects = selects
		if m.selected(namespace) != was {
			m.turn(namespace)
		}
	}
	m.selects = selects
}

// turn marks everything in a namespace that is newly included or excluded. Because marks are
// ignored for excluded namespaces, it temporarily selects all.
func (m *member) turn(namespace string) (changed bool) {
	now := m.selects
	m.selects = nil
	defer func() { m.selects = now }()
	for n := range m.services {
		if n.Namespace == namespace {
			m.service(n)
			changed = true
		}
	}
	for n := range m.pods {
		if n.Namespace == namespace && m.workload(n) != nil {
			changed = m.pod(n) || changed
		}
	}
	return changed
}
