// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gatewayapi

import (
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// grant allows references from objects of a kind and namespace.
type grant struct {
	from gatewayv1.ReferenceGrantFrom
	// namespace is the namespace of the grant and of the objects that may be referenced.
	namespace string
	to        gatewayv1.ReferenceGrantTo
}

func (c *converter) readGrants() {
	for _, o := range specs[gatewayv1.ReferenceGrantSpec](c, model.ReferenceGrant) {
		for _, from := range o.spec.From {
			for _, to := range o.spec.To {
				c.grants = append(c.grants, grant{from: from, namespace: o.Namespace, to: to})
			}
		}
	}
}

// reference is a reference from an object to another, possibly in another namespace.
type reference struct {
	kind      model.Kind // of the referring object
	namespace string
	group     string // of the referenced object
	toKind    string
	to        name
}

// allowed reports whether a reference stays within a namespace, or a grant in the target namespace
// allows it.
func (c *converter) allowed(r reference) bool {
	if r.namespace == r.to.namespace {
		return true
	}
	for _, g := range c.grants {
		kind := model.Kind(g.from.Kind)
		if kind == kindGateway {
			kind = model.KubernetesGateway
		}
		if g.namespace == r.to.namespace && g.from.Group == groupGateway && kind == r.kind && string(g.from.Namespace) == r.namespace &&
			string(g.to.Group) == r.group && string(g.to.Kind) == r.toKind && (g.to.Name == nil || string(*g.to.Name) == r.to.name) {
			return true
		}
	}
	return false
}
