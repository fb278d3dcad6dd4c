// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"net/netip"
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

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Viewer contains the properties of a proxy that affect its clusters. It is comparable.
type Viewer struct {
	// Router is true for gateways. Proxyless is true for gRPC clients without an Envoy.
	Router, Proxyless bool
	// Dialled is true if the proxy knows the original destination address of connections.
	Dialled bool
	// IPv4 and IPv6 are the IP families of the proxy's addresses.
	IPv4, IPv6 bool
}

// ViewerOf returns the properties of a proxy that affect its clusters.
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

// Resolution returns how the proxy finds the endpoints: by the resolution of the service, or at
// the original destination address if the service or its rule requests that and the proxy knows
// the address.
func (src Source) Resolution() model.Resolution {
	passthrough := src.Service.Passthrough || src.Policy().Balancer.GetSimple() == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH
	if passthrough && src.Viewer.Dialled {
		return model.ResolutionPassthrough
	}
	return src.Service.Resolution
}

// discover configures how Envoy finds the endpoints.
func discover(c *clusterv3.Cluster, src Source, endpoints *endpointv3.ClusterLoadAssignment) {
	switch src.Resolution() {
	case model.ResolutionDNS, model.ResolutionDNSRoundRobin:
		c.LoadAssignment = endpoints
		c.ClusterDiscoveryType = byName(src)
		if len(endpoints.GetEndpoints()) == 0 {
			// There is no name to resolve, and Envoy rejects round robin without one. Routes may
			// refer to the cluster, so a cluster without endpoints is better than none.
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		}
	case model.ResolutionDynamicDNS:
		c.ClusterDiscoveryType = ofAnyName(src.Config, src.Viewer)
		provided(c)
	case model.ResolutionPassthrough:
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		provided(c)
	case model.ResolutionStatic:
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: envoyconf.OverADS(), ServiceName: c.GetName()}
	}
}

// ofAnyName makes Envoy resolve the host of each request.
func ofAnyName(mesh *meshv1alpha1.MeshConfig, v Viewer) *clusterv3.Cluster_ClusterType {
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dynamic_forward_proxy",
		TypedConfig: envoyconf.Pack(&forwardv3.ClusterConfig{
			ClusterImplementationSpecifier: &forwardv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: NameCache(mesh, v)},
			// Certificates are still verified against the name that the cluster sets, but Envoy does
			// not take that into account.
			AllowInsecureClusterOptions: true,
		}),
	}}
}

// provided sets the load balancing policy of discovery types that provide a single endpoint.
func provided(c *clusterv3.Cluster) {
	c.LbPolicy, c.LbConfig, c.CommonLbConfig = clusterv3.Cluster_CLUSTER_PROVIDED, nil, nil
}

// byName makes Envoy resolve the names of the endpoints. With strict DNS, all addresses of all
// names are endpoints. With round robin (logical DNS) there is one name, and new connections use
// its first address.
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

// NameCache returns the DNS cache for names that are requested from services with a wildcard host.
// All clusters of a proxy share it. A filter that resolves names for such a cluster must use the
// same configuration.
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

// metadata returns the service and the rule of a cluster, under the names that Istio's tools and
// filters read.
func metadata(src Source) *corev3.Metadata {
	text := structpb.NewStringValue
	svc := src.Service
	name := svc.ShortName()
	fields := map[string]*structpb.Value{
		"services": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"host": text(svc.Hostname), "name": text(name), "namespace": text(svc.Namespace),
		}})}}),
	}
	if src.Rule != nil {
		fields["config"] = envoyconf.MadeFrom("destination-rule", src.Rule.From[0].Key)
	}
	if src.Subset != "" {
		fields["subset"] = text(src.Subset)
	}
	out := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: fields}}}
	if src.Labelled {
		out.FilterMetadata[envoyconf.LabelsNamespace] = serviceLabels(svc.Hostname, name, svc.Namespace)
	}
	return out
}

// serviceLabels returns the metadata of a cluster for loggers of requests.
func serviceLabels(host, name, namespace string) *structpb.Struct {
	return envoyconf.Labels(map[string]string{
		envoyconf.ServiceHostLabel: host, envoyconf.ServiceNameLabel: name, envoyconf.ServiceNamespaceLabel: namespace,
	})
}

// Label adds the metadata that loggers of requests read to a cluster for unknown destinations.
func Label(c *clusterv3.Cluster) {
	c.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		envoyconf.LabelsNamespace: serviceLabels(node.Unknown, c.GetName(), node.Unknown),
	}}
}
