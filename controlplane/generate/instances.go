// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// instances returns what the workload of the proxy serves. Its addresses may be
// those of somebody else too, in another cluster or network.
func (s *target) instances() []snapshot.Instance {
	elsewhere := func(theirs, own string) bool { return theirs != "" && own != "" && theirs != own }
	return slices.DeleteFunc(s.mesh.Instances.At(s.proxy.IPs), func(i snapshot.Instance) bool {
		return elsewhere(i.Endpoint.Cluster, s.proxy.ClusterID) || elsewhere(i.Endpoint.Network, s.proxy.Network)
	})
}
