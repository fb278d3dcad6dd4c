// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// trustName is the name of the only resource of its type.
const trustName = "trust-bundle"

// trust returns the single PCDS resource: the trust bundle of the mesh, which is the same for all
// proxies. Without a bundle it returns an empty set, which removes nothing from proxies.
func (g *Generator) trust(mesh *snapshot.Mesh) *xds.Set {
	if mesh.Trust == nil || len(mesh.Trust.PEM) == 0 {
		return g.empty
	}
	return g.sets.get(setKey{typeURL: xds.TypeProxyConfig}, mesh.Sequence, inputs{mesh.Trust}, func(prev *xds.Set) *xds.Set {
		r, err := g.table.Get(mesh.Trust, xds.TypeProxyConfig, trustName, func() (proto.Message, xds.Sources) {
			return &meshv1alpha1.ProxyConfig{CaCertificatesPem: mesh.Trust.PEM}, nil
		})
		if err != nil {
			return g.empty // cannot fail: PEM is ASCII
		}
		return xds.NewSet(prev, []*xds.Resource{r}, nil)
	})
}
