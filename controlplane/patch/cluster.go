// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// clusterContext returns the context of a cluster of a sidecar.
func clusterContext(name string, place Place) Context {
	switch {
	case place.Context == networkingv1alpha3.EnvoyFilter_GATEWAY:
		return place.Context
	case strings.HasPrefix(name, "inbound|"), strings.HasPrefix(name, "InboundPassthrough"):
		return networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND
	}
	return networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
}

// TouchesCluster reports whether a patch matches a cluster of the given name.
func (p Patches) TouchesCluster(name string, place Place) bool {
	place.Context = clusterContext(name, place)
	r := run{Place: place, patches: p}
	return slices.ContainsFunc(r.of(cluster), func(one *Patch) bool { return one.Operation != add && r.matchesCluster(one, name) })
}

// Cluster applies the patches of clusters.
func (p Patches) Cluster(c *clusterv3.Cluster, place Place) Outcome[*clusterv3.Cluster] {
	place.Context = clusterContext(c.GetName(), place)
	name := c.GetName()
	change := func(r *run, c *clusterv3.Cluster) bool {
		keep := r.cluster(c)
		if keep && r.Denied != nil {
			r.Denied.GuardNames(c)
		}
		return keep
	}
	return apply(c, place, p, ClusterKinds, change, func(c *clusterv3.Cluster) error {
		if c.GetName() != name {
			return errors.New("it renames the cluster, whose name routes use: leave the name out")
		}
		return checkResource(c)
	})
}

func (r *run) cluster(c *clusterv3.Cluster) bool {
	for _, p := range r.of(cluster) {
		if p.Operation == add || !r.matchesCluster(p, c.GetName()) {
			continue
		}
		if p.Operation == remove {
			r.hit(p)
			return false
		}
		ok, err := mergeCluster(c, p)
		switch {
		case err != nil:
			r.fail(p, err)
		case ok:
			r.hit(p)
		}
	}
	return true
}

// mergeCluster merges a patch into a cluster. The settings of a transport socket are merged into
// those of the one with the same name, and nothing else of the patch then, as in Istio.
func mergeCluster(c *clusterv3.Cluster, p *Patch) (ok bool, err error) {
	want := p.value.(*clusterv3.Cluster).GetTransportSocket()
	if want == nil {
		p.into(c)
		return true, nil
	}
	var has *corev3.TransportSocket
	if list := c.GetTransportSocketMatches(); len(list) > 0 {
		i := slices.IndexFunc(list, func(m *clusterv3.Cluster_TransportSocketMatch) bool {
			return m.GetTransportSocket().GetName() == want.GetName()
		})
		if i < 0 {
			return false, nil // both kinds of sockets together are invalid
		}
		has = list[i].GetTransportSocket()
	} else if c.GetTransportSocket().GetName() == want.GetName() {
		has = c.GetTransportSocket()
	}
	if has == nil {
		c.TransportSocket = proto.CloneOf(want) // later patches merge into it
		return true, nil
	}
	return true, mergeSocket(has, want, p)
}
