// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// networkLabel is the label for the network of a workload.
const networkLabel = "topology.istio.io/network"

// networkFinder maps clusters and address ranges to networks.
type networkFinder struct {
	from     *meshv1alpha1.MeshNetworks
	clusters map[string]string
	ranges   []networkRange // narrowest first
	problems []model.Problem
}

type networkRange struct {
	prefix  netip.Prefix
	network string
}

// newNetworkFinder returns a networkFinder for the networks, which may be nil.
func newNetworkFinder(in *meshv1alpha1.MeshNetworks) *networkFinder {
	f := &networkFinder{from: in, clusters: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(in.GetNetworks())) {
		for _, e := range in.GetNetworks()[name].GetEndpoints() {
			if cluster := e.GetFromRegistry(); cluster != "" {
				if other, twice := f.clusters[cluster]; twice && other != name {
					f.problems = append(f.problems, networkProblem("fromRegistry %q is in the networks %q and %q, and belongs to %q: keep it in one of them", cluster, other, name, other))
					continue
				}
				f.clusters[cluster] = name
			}
			if text := e.GetFromCidr(); text != "" {
				prefix, err := netip.ParsePrefix(text)
				if err != nil {
					f.problems = append(f.problems, networkProblem("fromCidr of the network %q is %q, which is not a range and is ignored: write one such as 10.0.0.0/8", name, text))
					continue
				}
				f.ranges = append(f.ranges, networkRange{prefix.Masked(), name})
			}
		}
	}
	slices.SortStableFunc(f.ranges, func(a, b networkRange) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	return f
}

func networkProblem(format string, args ...any) model.Problem {
	return model.Problem{Object: model.Key{Kind: model.MeshConfigKind, Name: "meshNetworks"}, Reason: fmt.Sprintf(format, args...), Warning: true}
}

// of returns the network of an address in a cluster, or "" if it is unknown.
func (f *networkFinder) of(cluster, address string) string {
	if network := f.clusters[cluster]; network != "" {
		return network
	}
	if len(f.ranges) == 0 {
		return ""
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	for _, r := range f.ranges {
		if r.prefix.Contains(ip.Unmap()) {
			return r.network
		}
	}
	return ""
}

// assign sets the network of the endpoints of a platform that do not name one, and keeps each
// address once per network. It returns the same list if there is nothing to change.
func (f *networkFinder) assign(list []*model.Endpoint) []*model.Endpoint {
	if len(f.clusters) == 0 && len(f.ranges) == 0 {
		for i := range max(len(list)-1, 0) {
			if compareEndpoints(list[i], list[i+1]) == 0 {
				return SortEndpoints(slices.Clone(list))
			}
		}
		return list
	}
	var out []*model.Endpoint
	for i, e := range list {
		if e.Network != "" {
			continue
		}
		network := f.of(e.Cluster, e.Address)
		if network == "" {
			continue
		}
		if out == nil {
			out = slices.Clone(list)
		}
		with := *e
		with.Network = network
		if with.Labels = maps.Clone(e.Labels); with.Labels != nil {
			with.Labels[networkLabel] = network
		}
		out[i] = &with
	}
	if out == nil {
		out = slices.Clone(list)
	}
	return SortEndpoints(out)
}

// Networks are the gateways of the networks of a mesh. The zero value and nil have no gateways.
type Networks struct {
	all       []model.NetworkGateway // sorted
	byNetwork map[string][]model.NetworkGateway
	byCluster map[inNetwork][]model.NetworkGateway
	scale     uint32
}

type inNetwork struct{ network, cluster string }

// Any reports whether there is at least one gateway.
func (n *Networks) Any() bool { return n != nil && len(n.all) > 0 }

// Equal reports whether the gateways are the same.
func (n *Networks) Equal(o *Networks) bool { return slices.Equal(n.All(), o.All()) }

// All returns all gateways, sorted.
func (n *Networks) All() []model.NetworkGateway {
	if n == nil {
		return nil
	}
	return n.all
}

// Gateways returns the gateways to the endpoints of a cluster in a network: those of the cluster,
// or all of the network if the cluster has none.
func (n *Networks) Gateways(network, cluster string) []model.NetworkGateway {
	if n == nil || network == "" {
		return nil
	}
	if own := n.byCluster[inNetwork{network, cluster}]; len(own) > 0 {
		return own
	}
	return n.byNetwork[network]
}

// Scale returns a factor for endpoint weights. It is a common multiple of the possible numbers of
// gateways of an endpoint, so that the weight can be divided among them; at least 1.
func (n *Networks) Scale() uint32 {
	if n == nil {
		return 1
	}
	return max(n.scale, 1)
}

// maxScale is the maximum of the factor. Beyond it, divided weights are rounded.
const maxScale = 1 << 16

// newNetworks indexes gateways. It sorts the list in place.
func newNetworks(all []model.NetworkGateway) *Networks {
	slices.SortFunc(all, model.NetworkGateway.Compare)
	n := &Networks{
		all: slices.Compact(all), byNetwork: map[string][]model.NetworkGateway{}, byCluster: map[inNetwork][]model.NetworkGateway{}, scale: 1,
	}
	for _, g := range n.all {
		n.byNetwork[g.Network] = append(n.byNetwork[g.Network], g)
		if g.Cluster != "" {
			key := inNetwork{g.Network, g.Cluster}
			n.byCluster[key] = append(n.byCluster[key], g)
		}
	}
	counts := map[int]bool{}
	for _, list := range n.byNetwork {
		counts[len(list)] = true
	}
	for _, list := range n.byCluster {
		counts[len(list)] = true
	}
	for _, count := range slices.Sorted(maps.Keys(counts)) {
		n.scale = multiple(n.scale, count)
	}
	return n
}

// multiple returns the least common multiple of a and b, or a if the multiple is too large.
func multiple(a uint32, b int) uint32 {
	x, y := uint64(a), uint64(b)
	for y != 0 {
		x, y = y, x%y
	}
	if m := uint64(a) / x * uint64(b); m <= min(maxScale, math.MaxUint32) {
		return uint32(m)
	}
	return a
}

// gateways collects the gateways of networks, from the services of the platform that are gateways
// and from the networks themselves.
func (b *builder) gateways(services []*PlatformService) {
	sh := b.out.shape
	sh.problems = append(sh.problems, sh.networks.problems...)
	var all []model.NetworkGateway
	for _, p := range services {
		all = append(all, p.Gateways...)
	}
	byHost := map[string]*model.Service{}
	for _, p := range services {
		byHost[p.Service.Hostname] = p.Service
	}
	networks := b.in.Networks.GetNetworks()
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		for _, g := range networks[name].GetGateways() {
			if host := g.GetRegistryServiceName(); host != "" {
				all = append(all, b.gatewaysOf(byHost[host], name, g.GetPort())...)
				continue
			}
			address, err := netip.ParseAddr(g.GetAddress())
			if err != nil {
				sh.problems = append(sh.problems, networkProblem("the gateway %q of the network %q is not an IP address and is ignored: write one", g.GetAddress(), name))
				continue
			}
			if g.GetPort() == 0 || g.GetPort() > math.MaxUint16 {
				sh.problems = append(sh.problems, networkProblem("the gateway %q of the network %q has the port %d and is ignored: write one from 1 to 65535", g.GetAddress(), name, g.GetPort()))
				continue
			}
			all = append(all, model.NetworkGateway{Network: name, Address: address.String(), Port: g.GetPort()})
		}
	}
	b.out.Networks = newNetworks(all)
}

// gatewaysOf returns the gateways of a network that a service provides in the clusters of the
// network.
func (b *builder) gatewaysOf(s *model.Service, network string, port uint32) (out []model.NetworkGateway) {
	if s == nil {
		return nil
	}
	for cluster, addresses := range s.ExternalAddresses {
		if b.out.shape.networks.clusters[cluster] != network {
			continue
		}
		for _, address := range addresses {
			if ip, err := netip.ParseAddr(address); err == nil {
				out = append(out, model.NetworkGateway{
					Network: network, Cluster: cluster, Address: ip.String(), Port: cmp.Or(s.ExternalPorts[cluster][port], port),
				})
			}
		}
	}
	return out
}
