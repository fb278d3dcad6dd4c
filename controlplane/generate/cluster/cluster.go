// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dnscommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/parts"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// HTTPOptionsKey is where a cluster says which HTTP it speaks.
const HTTPOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// Source is everything that an outbound cluster is built from but the
// endpoints that Envoy resolves itself. It is comparable.
type Source struct {
	Service  *model.Service
	Port     model.Port
	Subset   string
	Rule     *snapshot.DestinationRule // may be nil
	Accounts *snapshot.AccountSet
	Config   *meshv1alpha1.MeshConfig
}

// Policy is what the rule says about the port and the subset.
func (src Source) Policy() Policy { return PolicyOf(src.Rule, src.Subset, src.Port.Number) }

// Outbound makes the cluster of a port and subset of a service. The endpoints are
// those that Envoy resolves itself, otherwise nil.
func Outbound(name string, src Source, endpoints *endpointv3.ClusterLoadAssignment) *clusterv3.Cluster {
	p := src.Policy()
	c := &clusterv3.Cluster{
		Name:            name,
		ConnectTimeout:  durationpb.New(10 * time.Second),
		LbPolicy:        p.lbPolicy(),
		CircuitBreakers: p.CircuitBreakers(),
	}
	if src.Service.Resolution == model.ResolutionDNS {
		c.ClusterDiscoveryType = dnsDiscovery(src.Config)
		c.LoadAssignment = endpoints
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: parts.OverADS(), ServiceName: name}
	}
	p.applyConnections(c, src.Config)
	p.ApplyOutlier(c)
	http := p.httpOptions(src.Port.Protocol, src.Config)
	if http != nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{HTTPOptionsKey: parts.Pack(http)}
	}
	applyTLS(c, src, p)
	return c
}

// dnsDiscovery makes Envoy resolve each endpoint's name and balance over all
// addresses (strict DNS).
func dnsDiscovery(mesh *meshv1alpha1.MeshConfig) *clusterv3.Cluster_ClusterType {
	dns := &dnsv3.DnsCluster{
		DnsRefreshRate:  durationpb.New(60 * time.Second),
		RespectDnsTtl:   true,
		DnsLookupFamily: dnscommonv3.DnsLookupFamily_V4_PREFERRED,
	}
	if d, ok := parts.Positive(mesh.GetDnsRefreshRate()); ok {
		dns.DnsRefreshRate = d
	}
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dns", TypedConfig: parts.Pack(dns),
	}}
}

// applyTLS decides how connections to the endpoints are secured: as the rule
// says; otherwise mutual TLS with each endpoint that is known to speak it.
func applyTLS(c *clusterv3.Cluster, src Source, p Policy) {
	auto := p.TLS == nil
	if auto && (src.Service.External || src.Config.GetEnableAutoMtls() != nil && !src.Config.GetEnableAutoMtls().GetValue()) {
		return
	}
	if !auto && p.TLS.GetMode() != networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
		return
	}
	sni := p.TLS.GetSni()
	if sni == "" {
		sni = parts.ServerName(src.Port.Number, src.Subset, src.Service.Hostname)
	}
	names := p.TLS.GetSubjectAltNames()
	if len(names) == 0 {
		names = parts.Identities(src.Config, src.Service, src.Accounts)
	}
	socket := parts.UpstreamTLS(src.Config, sni, names, upstreamALPN(src, p))
	if !auto {
		c.TransportSocket = socket
		return
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: TLSModeIstio(), TransportSocket: socket},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: parts.Plaintext()},
	}
}

func upstreamALPN(src Source, p Policy) []string {
	switch {
	case !src.Port.Protocol.IsHTTP() || p.Pool.GetHttp().GetUseClientProtocol():
		// Without a name that both sides know, the other side looks at the
		// bytes to find out the protocol.
		return []string{parts.ALPNMesh}
	case src.Port.Protocol.IsHTTP2() || p.upgradesToHTTP2(src.Config):
		return []string{parts.ALPNMeshHTTP2, parts.ALPNMesh, "h2"}
	default:
		return []string{parts.ALPNMeshHTTP1, parts.ALPNMesh, "http/1.1"}
	}
}

// TLSModeIstio marks endpoints that speak mutual TLS of the mesh.
func TLSModeIstio() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

// BlackHole is the cluster without endpoints.
func BlackHole() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 parts.BlackHoleCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(10 * time.Second),
	}
}

// Inbound leads to one port of the application.
func Inbound(name string, address *corev3.Address, protocol model.Protocol, mesh *meshv1alpha1.MeshConfig) *clusterv3.Cluster {
	var p Policy
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(10 * time.Second),
		CircuitBreakers:      p.CircuitBreakers(),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}}}},
		},
	}
	if http := p.httpOptions(protocol, &meshv1alpha1.MeshConfig{}); http != nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{HTTPOptionsKey: parts.Pack(http)}
	}
	p.applyConnections(c, mesh)
	return c
}
