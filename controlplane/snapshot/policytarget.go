// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"fmt"
	"slices"

	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// gatewayClassLabel is the label on the workloads of a Gateway of the Gateway API that names its
// class.
const gatewayClassLabel = gatewayAPIGroup + "/gateway-class-name"

// policyTarget are the fields of a policy that determine its workloads.
type policyTarget interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// targetRefs returns the references of a policy to its targets.
func targetRefs(p policyTarget) []*typev1beta1.PolicyTargetReference {
	if refs := p.GetTargetRefs(); len(refs) > 0 || p.GetTargetRef() == nil {
		return refs
	}
	return []*typev1beta1.PolicyTargetReference{p.GetTargetRef()}
}

// policyIndex finds the policies of a workload without comparing the selectors of all. Policies of
// the root namespace apply to all namespaces.
type policyIndex[T comparable] struct {
	root       string
	namespaces map[string]*namespacePolicies[T]
	// services are the policies by the Service or ServiceEntry that they name.
	services map[model.Key][]T
}

// namespacePolicies are the policies of one namespace: those without a selector, those with one, and
// those that name Gateways, which are in the same namespace.
type namespacePolicies[T comparable] struct {
	whole              []T
	selected, gateways selectors[T]
}

// add adds a policy. It calls report for each target that the policy does not apply to.
func (p *policyIndex[T]) add(namespace string, target policyTarget, policy T, report func(format string, args ...any)) {
	ns := p.namespaces[namespace]
	if ns == nil {
		ns = &namespacePolicies[T]{}
		if p.namespaces == nil {
			p.namespaces = map[string]*namespacePolicies[T]{}
		}
		p.namespaces[namespace] = ns
	}
	refs := targetRefs(target)
	if len(refs) == 0 {
		if labels := target.GetSelector().GetMatchLabels(); len(labels) > 0 {
			ns.selected.add(labels, policy)
		} else {
			ns.whole = append(ns.whole, policy)
		}
		return
	}
	for i, ref := range refs {
		at := fmt.Sprintf("spec.targetRefs[%d]: %s %q", i, ref.GetKind(), ref.GetName())
		switch {
		case ref.GetGroup() == gatewayAPIGroup && ref.GetKind() == string(kindGateway):
			ns.gateways.add(map[string]string{gatewayNameLabel: ref.GetName()}, policy)
		case ref.GetGroup() == gatewayAPIGroup && ref.GetKind() == string(model.GatewayClass) && namespace == p.root:
			ns.selected.add(map[string]string{gatewayClassLabel: ref.GetName()}, policy)
		case ref.GetGroup() == gatewayAPIGroup && ref.GetKind() == string(model.GatewayClass):
			report("%s: a policy for a class must be in the root namespace %q; this one has no effect; move it, or name a Gateway", at, p.root)
		case isService(ref):
			key := model.Key{Kind: model.Kind(ref.GetKind()), Namespace: namespace, Name: ref.GetName()}
			if p.services == nil {
				p.services = map[model.Key][]T{}
			}
			p.services[key] = append(p.services[key], policy)
		default:
			report("%s cannot be the target of this kind, so the policy has no effect; use a selector", at)
		}
	}
}

// isService reports whether a reference is one to a Service or ServiceEntry.
func isService(ref *typev1beta1.PolicyTargetReference) bool {
	switch model.Kind(ref.GetKind()) {
	case model.KubernetesService:
		return ref.GetGroup() == "" || ref.GetGroup() == "core"
	case model.ServiceEntry:
		return ref.GetGroup() == "networking.istio.io"
	}
	return false
}

// of returns the policies of a workload: those of the root namespace, those of its own, and those that
// name one of the services. In each namespace, those without a selector come first.
func (p *policyIndex[T]) of(namespace string, labels map[string]string, services []model.Key) []T {
	var out, named []T
	if ns := p.namespaces[p.root]; ns != nil && namespace != p.root {
		out = append(slices.Clip(ns.whole), ns.selected.matching(labels)...)
	}
	if ns := p.namespaces[namespace]; ns != nil {
		out = slices.Concat(out, ns.whole, ns.selected.matching(labels))
		named = ns.gateways.matching(labels)
	}
	for _, service := range services {
		named = append(named, p.services[service]...)
	}
	if len(named) == 0 {
		return out
	}
	seen := make(map[T]bool, len(out)) // a policy may have several targets
	for _, policy := range out {
		seen[policy] = true
	}
	for _, policy := range named {
		if !seen[policy] {
			seen[policy] = true
			out = append(out, policy)
		}
	}
	return out
}
