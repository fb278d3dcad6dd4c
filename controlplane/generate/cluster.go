// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dnscommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// httpOptionsKey is where a cluster says which HTTP it speaks.
const httpOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// clusterSource is everything that an outbound cluster is built from.
type clusterSource struct {
	service  *model.Service
	port     model.Port
	subset   string
	rule     *snapshot.DestinationRule
	accounts *snapshot.AccountSet
	// endpoints and peers are nil unless Envoy resolves the endpoints.
	endpoints *snapshot.EndpointSet
	peers     *snapshot.PeerAuthentications
	config    *meshv1alpha1.MeshConfig
}

// clusters gives the CDS resources of a proxy.
func (g *Generator) clusters(s *scope) *Set {
	out := g.outboundClusters(s)
	ingress := ingressOf(s)
	key := setKey{typeURL: TypeCluster, outbound: s.outbound, inbound: ingress.clusterKey()}
	return g.sets.get(key, s.mesh.Sequence, sources{out, ingress.sidecar(), s.mesh.Config}, func(prev *Set) *Set {
		all, problems := out.resources, out.problems
		for _, c := range ingress.clusters(s.mesh.Config) {
			r, err := g.table.put(TypeCluster, c.GetName(), c)
			if err != nil {
				problems = append(problems, left(s.sidecar.Config.Key, err))
				continue
			}
			all = append(all[:len(all):len(all)], r)
		}
		return newSet(prev, all, problems)
	})
}

// outboundClusters gives the clusters of all services that a scope sees.
func (g *Generator) outboundClusters(s *scope) *part {
	v := g.view(s)
	from := sources{v, s.mesh.Accounts, s.mesh.NamedEndpoints, s.mesh.PeerAuthentications, s.mesh.Config}
	return g.outbound.get(s.outbound, s.mesh.Sequence, from, func(prev *part) *part {
		p := &part{resources: make([]*Resource, 0, len(v.clusters)+1)}
		for _, ref := range v.clusters {
			if !policyOf(ref.rule, ref.subset, ref.port.Number).servesTLS() {
				continue // the snapshot reports it
			}
			src := clusterSource{
				service: ref.service, port: ref.port, subset: ref.subset, rule: ref.rule,
				accounts: s.mesh.Accounts.Of(ref.service.ServiceKey), config: s.mesh.Config,
			}
			if ref.service.Resolution == model.ResolutionDNS {
				src.endpoints, src.peers = s.mesh.NamedEndpoints.Of(ref.service.ServiceKey), s.mesh.PeerAuthentications
			}
			p.add(ref, func() (*Resource, error) {
				return g.table.get(src, TypeCluster, ref.name, func() proto.Message { return outboundCluster(ref.name, src) })
			})
		}
		p.add(clusterRef{}, func() (*Resource, error) { return g.table.put(TypeCluster, blackHoleCluster, blackHole()) })
		if prev != nil && slices.Equal(prev.resources, p.resources) && slices.Equal(prev.problems, p.problems) {
			return prev // so that the sets that hold it stay too
		}
		return p
	})
}

// add appends a resource, or the problem of the object that spoils it.
func (p *part) add(ref clusterRef, get func() (*Resource, error)) {
	r, err := get()
	switch {
	case err == nil:
		p.resources = append(p.resources, r)
	case ref.rule != nil:
		p.problems = append(p.problems, left(ref.rule.From[0].Key, err))
	case ref.service != nil:
		p.problems = append(p.problems, left(ref.service.Source, err))
	}
}

// left is the problem of an object of which no valid resource can be made.
func left(object model.Key, err error) model.Problem {
	return model.Problem{Object: object, Reason: "no valid Envoy configuration can be made of this object, it is left out: " + err.Error()}
}

func outboundCluster(name string, src clusterSource) *clusterv3.Cluster {
	p := policyOf(src.rule, src.subset, src.port.Number)
	c := &clusterv3.Cluster{
		Name:            name,
		ConnectTimeout:  durationpb.New(10 * time.Second),
		LbPolicy:        p.lbPolicy(),
		CircuitBreakers: p.circuitBreakers(),
	}
	if src.service.Resolution == model.ResolutionDNS {
		c.ClusterDiscoveryType = dnsDiscovery(src.config)
		c.LoadAssignment = loadAssignment(name, src.port.Number, endpointsOf(src.endpoints, src.rule, src.subset), src.peers)
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS(), ServiceName: name}
	}
	p.applyConnections(c, src.config)
	p.applyOutlier(c)
	http := p.httpOptions(src.port.Protocol, src.config)
	if http != nil {
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptionsKey: pack(http)}
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
	if d, ok := positive(mesh.GetDnsRefreshRate()); ok {
		dns.DnsRefreshRate = d
	}
	return &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dns", TypedConfig: pack(dns),
	}}
}

// applyTLS decides how connections to the endpoints are secured: as the rule
// says; otherwise mutual TLS with each endpoint that is known to speak it.
func applyTLS(c *clusterv3.Cluster, src clusterSource, p policy) {
	auto := p.tls == nil
	if auto && (src.service.External || src.config.GetEnableAutoMtls() != nil && !src.config.GetEnableAutoMtls().GetValue()) {
		return
	}
	if !auto && p.tls.GetMode() != networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
		return
	}
	sni := p.tls.GetSni()
	if sni == "" {
		sni = serverName(src.port.Number, src.subset, src.service.Hostname)
	}
	names := p.tls.GetSubjectAltNames()
	if len(names) == 0 {
		names = identities(src.config, src.service, src.accounts)
	}
	socket := upstreamTLS(src.config, sni, names, upstreamALPN(src, p))
	if !auto {
		c.TransportSocket = socket
		return
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: tlsModeIstio(), TransportSocket: socket},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: plaintext()},
	}
}

func upstreamALPN(src clusterSource, p policy) []string {
	switch {
	case !src.port.Protocol.IsHTTP() || p.pool.GetHttp().GetUseClientProtocol():
		// Without a name that both sides know, the other side looks at the
		// bytes to find out the protocol.
		return []string{alpnMesh}
	case src.port.Protocol.IsHTTP2() || p.upgradesToHTTP2(src.config):
		return []string{alpnMeshHTTP2, alpnMesh, "h2"}
	default:
		return []string{alpnMeshHTTP1, alpnMesh, "http/1.1"}
	}
}

func tlsModeIstio() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

// blackHole is the cluster without endpoints.
func blackHole() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 blackHoleCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(10 * time.Second),
	}
}

// staticCluster is a cluster with one fixed endpoint.
func staticCluster(name string, address *corev3.Address, p policy) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(10 * time.Second),
		CircuitBreakers:      p.circuitBreakers(),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}}}},
		},
	}
}
