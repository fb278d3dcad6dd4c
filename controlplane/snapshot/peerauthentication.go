// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// MutualTLS is the kind of connections that a workload accepts.
type MutualTLS int

const (
	// MutualTLSPermissive accepts mutual TLS and plaintext.
	MutualTLSPermissive MutualTLS = iota
	// MutualTLSStrict accepts only mutual TLS.
	MutualTLSStrict
	// MutualTLSDisabled accepts only plaintext.
	MutualTLSDisabled
)

// PeerAuthentications is the index of PeerAuthentications by workload.
type PeerAuthentications struct {
	mesh       *peerAuthentication
	namespaces map[string]*peerNamespace
	all        []*model.Config
}

type peerNamespace struct {
	whole     *peerAuthentication
	workloads selectors[*peerAuthentication]
}

// peerAuthentication is one object.
type peerAuthentication struct {
	*securityv1beta1.PeerAuthentication
	config *model.Config
}

func (p *PeerAuthentications) objects() []*model.Config {
	if p == nil {
		return nil
	}
	return p.all
}

func newPeerAuthentications(_ *PeerAuthentications, objs []*model.Config, set settings) *PeerAuthentications {
	p := &PeerAuthentications{namespaces: make(map[string]*peerNamespace), all: objs}
	for _, obj := range objs {
		message, ok := obj.Spec.(*securityv1beta1.PeerAuthentication)
		if !ok {
			continue
		}
		spec := &peerAuthentication{message, obj}
		selector := spec.GetSelector().GetMatchLabels()
		if obj.Namespace == set.root {
			// Objects with a selector have no effect in the root namespace.
			if len(selector) == 0 && p.mesh == nil {
				p.mesh = spec
			}
			continue
		}
		ns := p.namespaces[obj.Namespace]
		if ns == nil {
			ns = &peerNamespace{}
			p.namespaces[obj.Namespace] = ns
		}
		switch {
		case len(selector) > 0:
			ns.workloads.add(selector, spec)
		case ns.whole == nil:
			ns.whole = spec
		}
	}
	return p
}

// Mode returns the mode of a port of a workload. The objects of the mesh, the namespace and the
// workload apply in this order; an object without a mode inherits the previous one.
func (p *PeerAuthentications) Mode(namespace string, labels map[string]string, port uint32) MutualTLS {
	mode := MutualTLSPermissive
	mesh, whole, workload := p.of(namespace, labels)
	for _, spec := range []*peerAuthentication{mesh, whole, workload} {
		if spec != nil {
			mode = apply(mode, spec.GetMtls())
		}
	}
	if workload != nil {
		mode = apply(mode, workload.GetPortLevelMtls()[port])
	}
	return mode
}

// Of returns the objects that [PeerAuthentications.Mode] reads for a workload.
func (p *PeerAuthentications) Of(namespace string, labels map[string]string) []*model.Config {
	var out []*model.Config
	mesh, whole, workload := p.of(namespace, labels)
	for _, spec := range []*peerAuthentication{mesh, whole, workload} {
		if spec != nil {
			out = append(out, spec.config)
		}
	}
	return out
}

// of returns the objects of the mesh, the namespace and the workload; each may be nil.
func (p *PeerAuthentications) of(namespace string, labels map[string]string) (mesh, whole, workload *peerAuthentication) {
	if ns := p.namespaces[namespace]; ns != nil {
		workload, _ = ns.workloads.first(labels)
		whole = ns.whole
	}
	return p.mesh, whole, workload
}

// Ports returns the ports of a workload that have their own mode, sorted.
func (p *PeerAuthentications) Ports(namespace string, labels map[string]string) []uint32 {
	if _, _, workload := p.of(namespace, labels); workload != nil {
		return slices.Sorted(maps.Keys(workload.GetPortLevelMtls()))
	}
	return nil
}

func apply(mode MutualTLS, mtls *securityv1beta1.PeerAuthentication_MutualTLS) MutualTLS {
	switch mtls.GetMode() {
	case securityv1beta1.PeerAuthentication_MutualTLS_DISABLE:
		return MutualTLSDisabled
	case securityv1beta1.PeerAuthentication_MutualTLS_PERMISSIVE:
		return MutualTLSPermissive
	case securityv1beta1.PeerAuthentication_MutualTLS_STRICT:
		return MutualTLSStrict
	case securityv1beta1.PeerAuthentication_MutualTLS_UNSET:
	}
	return mode
}
