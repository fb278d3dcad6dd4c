// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/cluster"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// StreamMatch is the interface that TLS and TCP matches share.
type StreamMatch interface {
	GetPort() uint32
	GetSourceLabels() map[string]string
	GetSourceNamespace() string
	GetGateways() []string
}

// TakesStream evaluates the conditions of a TLS or TCP match on the caller, the gateway and the
// port. The namespace is that of the object.
func (b *Builder) TakesStream(m StreamMatch, port uint32, namespace string) bool {
	if gateways := m.GetGateways(); len(gateways) > 0 && !slices.ContainsFunc(gateways, func(name string) bool { return b.isGateway(name, namespace) }) {
		return false
	}
	return (m.GetPort() == 0 || m.GetPort() == port) &&
		(m.GetSourceNamespace() == "" || m.GetSourceNamespace() == b.Proxy.Namespace) &&
		model.Selects(m.GetSourceLabels(), b.Proxy.Labels)
}

// Stream returns the destinations of the connections of a TLS or TCP route. It returns false if
// all weights are 0, so that connections are closed.
func (b *Builder) Stream(vs *snapshot.VirtualService, port uint32, dests []*networkingv1alpha3.RouteDestination) (envoyconf.Stream, bool) {
	var out envoyconf.Stream
	var first target
	b.sources.AddConfigs(vs.Config)
	for _, d := range dests {
		if d.GetWeight() <= 0 && len(dests) > 1 {
			continue
		}
		t := b.target(d.GetDestination(), &Host{Port: port, Rules: vs})
		if len(out.Targets) == 0 {
			first = t
			// The connection settings of the first destination apply to all.
			out = b.connections(t)
		}
		out.Targets = append(out.Targets, envoyconf.Target{Cluster: t.cluster(), Weight: uint32(max(d.GetWeight(), 1))})
	}
	switch len(out.Targets) {
	case 0:
		return envoyconf.BlackHole(nil), false
	case 1:
		out.StatPrefix = b.statName(first)
	default:
		out.StatPrefix = vs.Config.Name + "." + vs.Config.Namespace
	}
	return out, true
}

// StreamTo returns the destination of connections to a service port.
func (b *Builder) StreamTo(svc *model.Service, port uint32) envoyconf.Stream {
	t := target{host: svc.Hostname, port: port, service: svc}
	out := b.connections(t)
	out.StatPrefix, out.Targets = b.statName(t), []envoyconf.Target{{Cluster: t.cluster(), Weight: 1}}
	return out
}

// statName returns the name of a target in the counters of connections.
func (b *Builder) statName(t target) string {
	pattern := b.Mesh.Config.GetOutboundClusterStatName()
	if pattern == "" || t.service == nil {
		return t.cluster()
	}
	b.sources.Add(t.service.Source)
	return envoyconf.ClusterStatName(pattern, t.service, t.port, t.subset, 0)
}

// connections returns the connection settings of a target's DestinationRule.
func (b *Builder) connections(t target) (out envoyconf.Stream) {
	if t.service == nil {
		return out
	}
	rule := b.Mesh.DestinationRules.For(t.service.ServiceKey, b.Proxy.Namespace, b.Proxy.Labels)
	policy := cluster.PolicyOf(rule, t.subset, t.port)
	out.Idle, out.Longest = policy.Pool.GetTcp().GetIdleTimeout(), policy.Pool.GetTcp().GetMaxConnectionDuration()
	out.BySource, out.Tunnel = policy.Balancer.GetConsistentHash().GetUseSourceIp(), policy.Tunneling()
	if out.Idle != nil || out.Longest != nil || out.BySource || out.Tunnel != nil {
		b.sources.AddConfigs(rule.Objects()...)
	}
	return out
}
