// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dnscommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	forwardv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Viewer is what of a proxy decides its clusters. It is comparable.
type Viewer struct {
	// Router is true for gateways, Proxyless for a client that is no Envoy.
	Router, Proxyless bool
	// Dialled is true if the proxy knows the address that the application
	// dialled.
	Dialled bool
	// IPv4 and IPv6 are the kinds of addresses that it has.
	IPv4, IPv6 bool
}

// ViewerOf returns what of a proxy decides its clusters.
func ViewerOf(p *model.Proxy) Viewer {
	v := Viewer{Router: p.Role == "router", Proxyless: p.Proxyless}
	v.Dialled = p.Role == "sidecar" && !p.Proxyless && p.Interception != model.InterceptionNone
	for _, ip := range p.IPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			v.IPv4, v.IPv6 = v.IPv4 || addr.Unmap().Is4(), v.IPv6 || !addr.Unmap().Is4()
		}
	}
	return v
}

// Resolution says how the endpoints are found: as the service has it; or at the
// address that was dialled, if the service or its rule wants that and the proxy
// knows it.
func (src Source) Resolution() model.Resolution {
	passthrough := src.Service.Passthrough || src.Policy().Balancer.GetSimple() == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH
	if passthrough && src.Viewer.Dialled {
		return model.ResolutionPassthrough
	}
	return src.Service.Resolution
}

// discover says how Envoy finds the endpoints.
func discover(c *clusterv3.Cluster, src Source, endpoints *endpointv3.ClusterLoadAssignment) {
	switch src.Resolution() {
	case model.ResolutionDNS, model.ResolutionDNSRoundRobin:
		c.LoadAssignment = endpoints
		c.ClusterDiscoveryType = byName(src)
		if len(endpoints.GetEndpoints()) == 0 {
			// There is no name to resolve, and Envoy refuses round robin without
			// one. Routes may lead here: better no endpoint than no cluster.
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		}
	case model.ResolutionDynamicDNS:
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.clusters.dynamic_forward_proxy",
			TypedConfig: envoyconf.Pack(&forwardv3.ClusterConfig{
				ClusterImplementationSpecifier: &forwardv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: NameCache(src.Config, src.Viewer)},
				// The name that certificates have to carry is set below as for
				// every cluster, which Envoy does not count.
				AllowInsecureClusterOptions: true,
			}),
		}}
		provided(c)
	case model.ResolutionPassthrough:
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		provided(c)
	case model.ResolutionStatic:
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: envoyconf.OverADS(), ServiceName: c.GetName()}
	}
}

// provided leaves the choice of the endpoint to the way in which it is found:
// there is one.
func provided(c *clusterv3.Cluster) {
	c.LbPolicy, c.LbConfig, c.CommonLbConfig = clusterv3.Cluster_CLUSTER_PROVIDED, nil, nil
}

// byName makes Envoy resolve each endpoint's name: all addresses of all names
// are endpoints (strict DNS); with round robin there is one name, whose first
// address takes new connections (logical DNS).
func byName(src Source) *clusterv3.Cluster_ClusterType {
	dns := &dnsv3.DnsCluster{
		DnsRefreshRate:               refreshRate(src.Config),
		RespectDnsTtl:                true,
		AllAddressesInSingleEndpoint: src.Service.Resolution == model.ResolutionDNSRoundRobin,
		DnsLookupFamily:              dnscommonv3.DnsLookupFamily_V4_ONLY,
	}
	switch {
	case src.Viewer.IPv4 && src.Viewer.IPv6:
		dns.DnsLookupFamily = dnscommonv3.DnsLookupFamily_V4_PREFERRED
	case src.Viewer.IPv6:
		dns.DnsLookupFamily = dnscommonv3.DnsLookupFamily_V6_ONLY
	}
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dns", TypedConfig: envoyconf.Pack(dns),
	}}
}

func refreshRate(mesh *meshv1alpha1.MeshConfig) *durationpb.Duration {
	if d, ok := envoyconf.Positive(mesh.GetDnsRefreshRate()); ok {
		return d
	}
	return durationpb.New(60 * time.Second)
}

// NameCache holds the addresses of the names that requests to services of a
// wildcard host name. There is one for all clusters of a proxy; a filter that
// resolves in front of such a cluster must carry the same one.
func NameCache(mesh *meshv1alpha1.MeshConfig, v Viewer) *cachev3.DnsCacheConfig {
	family := clusterv3.Cluster_V4_ONLY
	switch {
	case v.IPv4 && v.IPv6:
		family = clusterv3.Cluster_V4_PREFERRED
	case v.IPv6:
		family = clusterv3.Cluster_V6_ONLY
	}
	return &cachev3.DnsCacheConfig{Name: "dynamic_dns", DnsLookupFamily: family, DnsRefreshRate: refreshRate(mesh)}
}

// metadata says of which service and rule a cluster is made, under the names
// that Istio's tools and filters read.
func metadata(src Source) *corev3.Metadata {
	text := structpb.NewStringValue
	svc := src.Service
	name := svc.Hostname
	if svc.Registry == model.RegistryKubernetes {
		name, _, _ = strings.Cut(name, ".")
	}
	fields := map[string]*structpb.Value{
		"services": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"host": text(svc.Hostname), "name": text(name), "namespace": text(svc.Namespace),
		}})}}),
	}
	if src.Rule != nil {
		key := src.Rule.From[0].Key
		fields["config"] = text("/apis/networking.istio.io/v1alpha3/namespaces/" + key.Namespace + "/destination-rule/" + key.Name)
	}
	if src.Subset != "" {
		fields["subset"] = text(src.Subset)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
}
