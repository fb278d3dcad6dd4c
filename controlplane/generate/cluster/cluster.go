// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"cmp"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/controlplane/denylist"
	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// HTTPOptionsKey is the extension key of a cluster's HTTP protocol options.
const HTTPOptionsKey = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// Source contains everything that an outbound cluster is built from, except the endpoints that
// Envoy resolves itself. It is comparable.
type Source struct {
	Service    *model.Service
	Port       model.Port
	Subset     string
	Rule       *snapshot.DestinationRule // may be nil
	Accounts   *snapshot.AccountSet
	Config     *meshv1alpha1.MeshConfig
	Compliance tlspolicy.Policy // of TLS
	Denied     *denylist.List   // identities of servers that are refused; may be nil
	Viewer     Viewer
	// OfRouter is true for the clusters of gateways for ports of unknown protocol.
	OfRouter bool
	// Hashed is true if Envoy chooses the endpoint by a hash, also without a rule.
	Hashed bool
	// Secured is true if the service uses the original destination address and all of its
	// endpoints are known to support mutual TLS of the mesh. EDS endpoints carry this information
	// themselves.
	Secured bool
	// Labelled adds metadata that loggers of requests read.
	Labelled bool
	// LabelledBy is the object that causes this; may be empty.
	LabelledBy model.Key
	// Delimited ends the name of its stats with a semicolon.
	Delimited bool
}

// Policy returns the policy of the rule for the port and the subset.
func (src Source) Policy() Policy {
	p := PolicyOf(src.Rule, src.Subset, src.Port.Number)
	p.router = src.OfRouter
	return p
}

// Sources returns the objects that the cluster is built from, without those of endpoints.
func (src Source) Sources() xds.Sources {
	var from xds.Sources
	from.Add(src.Service.Source)
	from.AddConfigs(src.Rule.Objects()...)
	from.Add(src.LabelledBy)
	if src.Accounts != nil && src.namesAccounts(src.Policy()) {
		from.Add(src.Accounts.Entries...)
		from.Add(src.Service.EndpointsFrom...)
	}
	return from
}

// Outbound returns the cluster of a port and subset of a service. The endpoints are those that
// Envoy resolves itself, or nil.
func Outbound(name string, src Source, endpoints *endpointv3.ClusterLoadAssignment) *clusterv3.Cluster {
	p := src.Policy()
	c := &clusterv3.Cluster{
		Name:            name,
		ConnectTimeout:  durationpb.New(10 * time.Second),
		CircuitBreakers: p.CircuitBreakers(),
		Metadata:        metadata(src),
	}
	p.applyBalancer(c, src)
	discover(c, src, endpoints)
	admitDraining(c, src)
	p.applyConnections(c, src.Config)
	p.ApplyOutlier(c)
	http := p.httpOptions(src.Port.Protocol, src.Config)
	applyTLS(c, src, p, http)
	if snapshot.Receives(src.Config, src.Service, src.Port.Number) {
		boundReceiver(c, http)
	}
	setHTTP(c, http)
	p.applyProxyProtocol(c)
	if pattern := src.Config.GetOutboundClusterStatName(); pattern != "" {
		c.AltStatName = envoyconf.ClusterStatName(pattern, src.Service, src.Port.Number, src.Subset, 0)
	}
	if src.Delimited {
		Delimit(c)
	}
	return c
}

// Delimit ends the name of the cluster's stats with a semicolon.
func Delimit(c *clusterv3.Cluster) {
	c.AltStatName = envoyconf.StatName(cmp.Or(c.GetAltStatName(), c.GetName()), true)
}

// BlackHole returns the cluster without endpoints.
func BlackHole() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 envoyconf.BlackHoleCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(10 * time.Second),
	}
}

// Inbound returns the cluster that leads to one port of the application. At most one policy
// configures the connections; see [InboundPolicy].
func Inbound(name string, address *corev3.Address, protocol model.Protocol, mesh *meshv1alpha1.MeshConfig, own ...Policy) *clusterv3.Cluster {
	p := first(own)
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
	setHTTP(c, p.httpOptions(protocol, &meshv1alpha1.MeshConfig{}))
	p.applyConnections(c, mesh)
	return c
}
