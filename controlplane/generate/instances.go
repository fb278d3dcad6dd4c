// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// instances returns the service instances of the proxy's workload. Its addresses may also belong
// to another workload in another cluster or network.
func (s *target) instances() []snapshot.Instance {
	elsewhere := func(theirs, own string) bool { return theirs != "" && own != "" && theirs != own }
	return slices.DeleteFunc(s.mesh.Instances.At(s.proxy.IPs), func(i snapshot.Instance) bool {
		return elsewhere(i.Endpoint.Cluster, s.proxy.ClusterID) || elsewhere(i.Endpoint.Network, s.proxy.Network)
	})
}
