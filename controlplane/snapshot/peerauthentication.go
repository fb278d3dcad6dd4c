// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// MutualTLS says which connections a workload takes.
type MutualTLS int

const (
	// MutualTLSPermissive takes mutual TLS and plaintext.
	MutualTLSPermissive MutualTLS = iota
	// MutualTLSStrict takes mutual TLS only.
	MutualTLSStrict
	// MutualTLSDisabled takes plaintext only.
	MutualTLSDisabled
)

// PeerAuthentications answers which mode holds for a port of a workload.
type PeerAuthentications struct {
	mesh       *securityv1beta1.PeerAuthentication
	namespaces map[string]*peerNamespace
	all        []*model.Config
}

type peerNamespace struct {
	whole     *securityv1beta1.PeerAuthentication
	workloads selectors[*securityv1beta1.PeerAuthentication]
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
		spec, ok := obj.Spec.(*securityv1beta1.PeerAuthentication)
		if !ok {
			continue
		}
		selector := spec.GetSelector().GetMatchLabels()
		if obj.Namespace == set.root {
			// Objects with a selector mean nothing in the root namespace.
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

// Mode returns the mode of a port of a workload: mesh, namespace and workload
// objects in this order, where a later one that says nothing keeps the mode.
func (p *PeerAuthentications) Mode(namespace string, labels map[string]string, port uint32) MutualTLS {
	mode := apply(MutualTLSPermissive, p.mesh.GetMtls())
	ns := p.namespaces[namespace]
	if ns == nil {
		return mode
	}
	mode = apply(mode, ns.whole.GetMtls())
	if workload, ok := ns.workloads.first(labels); ok {
		mode = apply(mode, workload.GetMtls())
		mode = apply(mode, workload.GetPortLevelMtls()[port])
	}
	return mode
}

// Ports returns the ports of a workload that have a mode of their own, sorted.
func (p *PeerAuthentications) Ports(namespace string, labels map[string]string) []uint32 {
	if ns := p.namespaces[namespace]; ns != nil {
		if workload, ok := ns.workloads.first(labels); ok {
			return slices.Sorted(maps.Keys(workload.GetPortLevelMtls()))
		}
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
