// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package gateway

import (
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// Opaque converts the cluster of a port into one that forwards mutual TLS unchanged: it has the
// same endpoints and limits, but neither TLS nor HTTP settings.
func (p Passthrough) Opaque(c *clusterv3.Cluster) *clusterv3.Cluster {
	if c.GetAltStatName() == envoyconf.StatName(c.GetName(), true) {
		c.AltStatName = envoyconf.StatName(p.Name, true)
	}
	c.Name = p.Name
	c.TransportSocket, c.TransportSocketMatches = nil, nil
	c.TypedExtensionProtocolOptions = nil
	if c.GetEdsClusterConfig() != nil {
		c.EdsClusterConfig.ServiceName = p.Name
	}
	if c.GetLoadAssignment() != nil {
		c.LoadAssignment.ClusterName = p.Name
	}
	return c
}

// Destinations returns the destination hosts of the proxy's VirtualServices. The clusters of all
// other hosts can be omitted.
func (m *Merged) Destinations(in *Source) map[string]bool {
	hosts := make(map[string]bool)
	for _, l := range m.listeners {
		for _, s := range l.servers {
			for _, vs := range in.virtualServices(s.gateway) {
				destinations(vs.Spec, func(d *networkingv1alpha3.Destination) {
					hosts[in.Mesh.ResolveHost(d.GetHost(), vs.Config.Namespace)] = true
				})
			}
		}
	}
	for _, p := range m.Passthroughs(in) {
		hosts[p.Service.Hostname] = true
	}
	return hosts
}

// Needs reports whether a cluster is not an outbound cluster, or leads to one of the hosts.
func Needs(hosts map[string]bool, cluster string) bool {
	host, ok := outboundHost(cluster)
	return !ok || hosts[host]
}

// destinations calls f for each destination of an object.
func destinations(spec *networkingv1alpha3.VirtualService, f func(*networkingv1alpha3.Destination)) {
	for _, r := range spec.GetHttp() {
		for _, d := range r.GetRoute() {
			f(d.GetDestination())
		}
		for _, d := range r.GetMirrors() {
			f(d.GetDestination())
		}
		if r.GetMirror() != nil {
			f(r.GetMirror())
		}
	}
	var streams []*networkingv1alpha3.RouteDestination
	for _, r := range spec.GetTls() {
		streams = append(streams, r.GetRoute()...)
	}
	for _, r := range spec.GetTcp() {
		streams = append(streams, r.GetRoute()...)
	}
	for _, d := range streams {
		f(d.GetDestination())
	}
}

// outboundHost returns the host of an outbound cluster name. It returns false for other names.
func outboundHost(cluster string) (host string, ok bool) {
	if !strings.HasPrefix(cluster, "outbound|") {
		return "", false
	}
	return cluster[strings.LastIndexByte(cluster, '|')+1:], true
}
