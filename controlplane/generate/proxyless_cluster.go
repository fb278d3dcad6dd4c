// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"cmp"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// certificateProvider is the plugin of the gRPC bootstrap that provides the identity and the
// roots. Istio's agent writes the bootstrap with this name.
const certificateProvider = "default"

// proxylessSource contains everything that a cluster is built from.
type proxylessSource struct{ clusterSource }

// proxylessEndpointSource contains everything that endpoints are built from.
type proxylessEndpointSource struct{ endpointSource }

// memberKey identifies one of the clusters that are built from the same source.
type memberKey struct {
	proxylessSource
	member string
}

// proxylessClusters returns the clusters of the services that a client sees, except services with
// a wildcard host: gRPC cannot resolve the host of a request.
func (g *Generator) proxylessClusters(s *target, prev *xds.Set) *xds.Set {
	p := &part{}
	for _, ref := range g.view(s).clusters {
		if ref.found == model.ResolutionDynamicDNS {
			continue
		}
		src := proxylessSource{clusterSource{Source: ref.source(s)}}
		if src.named() {
			src.endpoints = s.mesh.NamedEndpoints.Of(ref.service.ServiceKey)
		}
		for _, c := range src.members(ref.name) {
			p.add(ref, func() (*xds.Resource, error) {
				return g.table.Get(memberKey{src, c.GetName()}, xds.TypeCluster, c.GetName(), func() (proto.Message, xds.Sources) { return src.build(c), src.sources() })
			})
		}
	}
	return xds.NewSet(prev, p.resources, p.problems)
}

// members returns the clusters for a name, without their policy. A cluster of gRPC resolves a
// single DNS name (gRFC A37), so that several names become one cluster each and an aggregate
// cluster that uses the first one that is available. Without any name, members returns a cluster
// without endpoints, so that calls fail at once.
func (src proxylessSource) members(name string) []*clusterv3.Cluster {
	names := src.names()
	switch len(names) {
	case 0:
		return []*clusterv3.Cluster{{
			Name:                 name,
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: envoyconf.OverADS(), ServiceName: name},
		}}
	case 1:
		return []*clusterv3.Cluster{oneNameCluster(name, names[0])}
	}
	front := &aggregatev3.ClusterConfig{}
	var out []*clusterv3.Cluster
	for _, ep := range names {
		c := oneNameCluster(name+"|"+envoyconf.HostPort(ep.Address, ep.Port), ep)
		front.Clusters, out = append(front.Clusters, c.GetName()), append(out, c)
	}
	return append(out, &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{
		ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "envoy.clusters.aggregate", TypedConfig: envoyconf.Pack(front)},
	}})
}

// names returns the endpoints that the client resolves, or none if the registry provides
// addresses.
func (src proxylessSource) names() []*model.Endpoint {
	if !src.named() {
		return nil
	}
	names := dialed(endpointsOf(src.endpoints, src.Rule, src.Subset, src.Port.Number), src.Port.Number)
	if src.Service.Resolution == model.ResolutionDNSRoundRobin && len(names) > 1 {
		return names[:1]
	}
	return names
}

func oneNameCluster(name string, ep *model.Endpoint) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS},
		LoadAssignment:       loadAssignment(name, ep.ServicePort, []*model.Endpoint{ep}, endpointFacts{}),
	}
}

// build applies the parts of the policy that gRPC supports.
func (src proxylessSource) build(c *clusterv3.Cluster) *clusterv3.Cluster {
	p := src.Policy()
	c.CircuitBreakers = p.CircuitBreakers()
	proxylessBalance(c, p.Balancer.GetConsistentHash())
	c.OutlierDetection = proxylessOutliers(p.Outlier)
	// Use mutual TLS only if a rule requires it: it is unknown whether the application created its
	// channel with xDS credentials. Moreover, endpoints other than gRPC libraries detect mutual
	// TLS by ALPN names that gRPC does not send.
	if p.TLS.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
		names := p.TLS.GetSubjectAltNames()
		if len(names) == 0 {
			names = envoyconf.Identities(src.Config, src.Service, src.Accounts)
		}
		c.TransportSocket = envoyconf.TLSSocket(&tlsv3.UpstreamTlsContext{
			Sni:              cmp.Or(p.TLS.GetSni(), envoyconf.ServerName(src.Port.Number, src.Subset, src.Service.Hostname)),
			CommonTlsContext: proxylessTLS(envoyconf.Accepted(names, src.Denied, src.Config)),
		})
	}
	return c
}

// proxylessBalance sets round robin, or the hash ring, which is the only hash policy of gRPC (gRFC
// A42). Other policies are plugins; a library that lacks one rejects the cluster.
func proxylessBalance(c *clusterv3.Cluster, hash *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB) {
	c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	if hash == nil {
		return
	}
	//lint:ignore SA1019 users still write it
	size := cmp.Or(hash.GetRingHash().GetMinimumRingSize(), hash.GetMinimumRingSize())
	ring := &clusterv3.Cluster_RingHashLbConfig{}
	if size > 0 && hash.GetMaglev() == nil {
		ring.MinimumRingSize = wrapperspb.UInt64(min(size, snapshot.MaxRing))
	}
	c.LbPolicy, c.LbConfig = clusterv3.Cluster_RING_HASH, &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: ring}
}

// defaultFailures is the number of consecutive failures that eject an endpoint if the rule sets
// none.
const defaultFailures = 5

// proxylessOutliers ejects an endpoint if all calls of an interval failed and their number reaches
// the limit of the rule. gRPC counts percentages and not consecutive failures (gRFC A50). It
// returns nil if outlier detection is disabled.
func proxylessOutliers(in *networkingv1alpha3.OutlierDetection) *clusterv3.OutlierDetection {
	if in == nil {
		return nil
	}
	var failures uint32
	least := func(n *wrapperspb.UInt32Value, unset uint32) {
		value := unset
		if n != nil {
			value = n.GetValue()
		}
		if value > 0 && (failures == 0 || value < failures) {
			failures = value
		}
	}
	least(in.GetConsecutive_5XxErrors(), defaultFailures)
	least(in.GetConsecutiveGatewayErrors(), 0)
	if failures == 0 {
		return nil
	}
	out := &clusterv3.OutlierDetection{
		Interval:                       in.GetInterval(),
		BaseEjectionTime:               in.GetBaseEjectionTime(),
		EnforcingSuccessRate:           wrapperspb.UInt32(0),
		EnforcingFailurePercentage:     wrapperspb.UInt32(100),
		FailurePercentageThreshold:     wrapperspb.UInt32(99), // ejects above this percentage
		FailurePercentageMinimumHosts:  wrapperspb.UInt32(1),
		FailurePercentageRequestVolume: wrapperspb.UInt32(failures),
	}
	if n := in.GetMaxEjectionPercent(); n > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(n))
	}
	return out
}

// proxylessTLS returns a mutual TLS context with the identity and roots of the gRPC bootstrap
// plugins. The peer must have one of the names, or any identity of the mesh if there are none.
func proxylessTLS(names []string) *tlsv3.CommonTlsContext {
	plugin := func(certificate string) *tlsv3.CertificateProviderPluginInstance {
		return &tlsv3.CertificateProviderPluginInstance{InstanceName: certificateProvider, CertificateName: certificate}
	}
	var matchers []*matcherv3.StringMatcher
	for _, name := range names {
		matchers = append(matchers, envoyconf.Exactly(name))
	}
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: plugin(envoyconf.SecretIdentity),
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			CaCertificateProviderInstance: plugin(envoyconf.SecretRoots),
			//lint:ignore SA1019 gRPC reads this field and not the typed one (gRFC A29)
			MatchSubjectAltNames: matchers,
		}},
	}
}

// proxylessEndpoints returns the endpoints of the services whose endpoints are known, as seen from
// the location of the client.
func (g *Generator) proxylessEndpoints(s *target, at viewpoint, prev *xds.Set) *xds.Set {
	p := &part{}
	for _, ref := range g.view(s).clusters {
		if ref.found == model.ResolutionDynamicDNS {
			continue
		}
		src := proxylessEndpointSource{endpointSource{
			name: ref.name, service: ref.service, port: ref.port.Number, subset: ref.subset, rule: ref.rule,
			endpoints: endpointSetOf(s.mesh, ref.service), locality: ref.locality(s),
		}}
		if ref.found.ByName() {
			if len(dialed(endpointsOf(src.endpoints, src.rule, src.subset, src.port), src.port)) > 0 {
				continue // resolved by the client
			}
			src.endpoints = nil
		}
		src.from = at.of(s, ref, src.endpoints)
		// A gateway of another network selects the destination by SNI, which gRPC does not send.
		// Endpoints behind such gateways are unreachable.
		src.from.secure = false
		p.add(ref, func() (*xds.Resource, error) {
			return g.table.Get(src, xds.TypeEndpoint, ref.name, func() (proto.Message, xds.Sources) {
				list := src.from.seen(endpointsOf(src.endpoints, src.rule, src.subset, src.port))
				if src.from.networks != nil {
					list = src.from.route(list, src.port, nil)
				}
				list = dialed(onlyIP(list), src.port)
				cla := loadAssignment(ref.name, src.port, list, endpointFacts{})
				prefer(cla, list, src.port, src.locality)
				return cla, src.sources()
			})
		})
	}
	return xds.NewSet(prev, p.resources, p.problems)
}

// dialed returns the endpoints of a port that gRPC can dial. gRPC rejects all endpoints if an
// address occurs twice or is a path.
func dialed(list []*model.Endpoint, port uint32) []*model.Endpoint {
	seen := map[string]bool{}
	var out []*model.Endpoint
	for _, ep := range list {
		_, unix := envoyconf.UnixPath(ep.Address)
		at := envoyconf.HostPort(ep.Address, ep.Port)
		if unix || ep.Address == "" || ep.ServicePort != port || seen[at] {
			continue
		}
		seen[at] = true
		plain := *ep
		plain.MutualTLS = false // there is no transport socket match for it
		out = append(out, &plain)
	}
	return slices.Clip(out)
}
