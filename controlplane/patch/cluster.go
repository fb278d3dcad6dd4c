// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"errors"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
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
		had := c.GetClusterType().GetTypedConfig()
		p.into(c)
		return true, mergeDNS(c, had)
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

// mergeDNS moves the settings of DNS that a patch has set in a cluster into the configuration of the
// type that resolves its names, because Envoy reads no others of such a cluster. It also keeps that
// type where a patch names the one that Envoy had before.
func mergeDNS(c *clusterv3.Cluster, had *anypb.Any) error {
	dns := &dnsv3.DnsCluster{}
	if !had.MessageIs(dns) {
		return nil
	}
	if err := had.UnmarshalTo(dns); err != nil {
		return err
	}
	switch t := c.GetClusterDiscoveryType().(type) {
	case *clusterv3.Cluster_Type:
		if t.Type != clusterv3.Cluster_STRICT_DNS && t.Type != clusterv3.Cluster_LOGICAL_DNS {
			return nil
		}
		dns.AllAddressesInSingleEndpoint = t.Type == clusterv3.Cluster_LOGICAL_DNS
	case *clusterv3.Cluster_ClusterType:
		if !proto.Equal(t.ClusterType.GetTypedConfig(), had) {
			return nil
		}
	}
	from, to := c.ProtoReflect(), dns.ProtoReflect()
	for i := range to.Descriptor().Fields().Len() {
		f := to.Descriptor().Fields().Get(i)
		old := from.Descriptor().Fields().ByName(f.Name())
		if old == nil || !from.Has(old) {
			continue
		}
		switch v := from.Get(old); {
		case f.Enum() != nil: // which has no value for none in clusters
			to.Set(f, protoreflect.ValueOfEnum(v.Enum()+1))
		case f.Message() != nil: // of the same fields
			b, err := proto.Marshal(v.Message().Interface())
			if err == nil {
				m := to.NewField(f)
				err = proto.Unmarshal(b, m.Message().Interface())
				to.Set(f, m)
			}
			if err != nil {
				return err
			}
		default:
			to.Set(f, v)
		}
		from.Clear(old)
	}
	packed := &anypb.Any{}
	c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.dns", TypedConfig: packed}}
	return anypb.MarshalFrom(packed, dns, proto.MarshalOptions{Deterministic: true})
}
