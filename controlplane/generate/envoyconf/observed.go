// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// Observed is what is recorded about the requests and connections of a filter chain. The zero value
// records nothing.
type Observed struct {
	// RequestLog and StreamLog are loggers of requests, and of connections whose requests are not
	// read.
	RequestLog, StreamLog []*accesslogv3.AccessLog
	// ClosedLog and ListenerLog are loggers of connections that a proxy closes itself, and of those
	// that no filter chain takes.
	ClosedLog, ListenerLog []*accesslogv3.AccessLog
	// Tracing says which requests are traced; nil means none. RequestID replaces how Envoy makes ids
	// of requests unless it is nil.
	Tracing   *hcmv3.HttpConnectionManager_Tracing
	RequestID *hcmv3.RequestIDExtension
	// Keep are the HTTP filters that keep values of a request for loggers.
	Keep []*hcmv3.HttpFilter
	// Early changes the headers of a request before anything reads it.
	Early []*corev3.TypedExtensionConfig
}

// The metadata of clusters and endpoints that loggers read. The keys of endpoints are [PeerKeys],
// and "namespace".
const (
	LabelsNamespace       = "outrigger"
	ServiceHostLabel      = "service_host"
	ServiceNameLabel      = "service_name"
	ServiceNamespaceLabel = "service_namespace"
)

// Labels returns metadata for loggers.
func Labels(values map[string]string) *structpb.Struct {
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(values))}
	for k, v := range values {
		out.Fields[k] = structpb.NewStringValue(v)
	}
	return out
}

// PeerHeader is the prefix of the headers in which a proxy tells another one about its workload.
const PeerHeader = "x-outrigger-peer-"

// PeerKeys are the parts of the names of these headers behind the prefix.
func PeerKeys() []string {
	return []string{"workload", "app", "version", "service", "revision", "cluster"}
}

// PeerAccount is the part of the name of a further header, with the service as the end of an identity:
// "/sa/" and the name.
const PeerAccount = "account"

// PeerHeaders returns the names of the headers.
func PeerHeaders() []string {
	keys := append(PeerKeys(), PeerAccount)
	for i, key := range keys {
		keys[i] = PeerHeader + key
	}
	return keys
}

// HidePeer makes the routes that lead out of the mesh remove the headers about the workload, and
// returns the objects of the services because of which others do not. The function returns the service
// of a host, or nil.
func HidePeer(routes []*routev3.Route, service func(host string) *model.Service, because model.Key) xds.Sources {
	var from xds.Sources
	for _, r := range routes {
		var inside xds.Sources
		for _, name := range clustersOf(r.GetRoute()) {
			svc := serviceOf(name, service)
			if svc == nil || svc.External {
				r.RequestHeadersToRemove = append(slices.Clone(r.GetRequestHeadersToRemove()), PeerHeaders()...)
				inside = nil
				from.Add(because)
				break
			}
			inside.Add(svc.Source)
		}
		from = append(from, inside...)
	}
	return from
}

// clustersOf returns the clusters that a request, or a copy of it, may be sent to.
func clustersOf(action *routev3.RouteAction) []string {
	var out []string
	if name := action.GetCluster(); name != "" {
		out = append(out, name)
	}
	for _, w := range action.GetWeightedClusters().GetClusters() {
		out = append(out, w.GetName())
	}
	for _, m := range action.GetRequestMirrorPolicies() {
		out = append(out, m.GetCluster())
	}
	return out
}

// serviceOf returns the service that a cluster leads to, or nil.
func serviceOf(cluster string, service func(host string) *model.Service) *model.Service {
	parts := strings.Split(cluster, "|") // see OutboundName
	if len(parts) != 4 {
		return nil
	}
	return service(parts[3])
}
