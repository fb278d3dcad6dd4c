// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package parts

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// The names of the filters that routes speak to.
const (
	FaultFilter = "envoy.filters.http.fault"
	CORSFilter  = "envoy.filters.http.cors"
)

const grpcStatsFilter = "envoy.filters.http.grpc_stats"

// filterRow is one HTTP filter of every connection manager, or a place for those
// of the user's.
type filterRow struct {
	name    string
	config  proto.Message
	reason  string // why it stands where it stands
	plugins []*hcmv3.HttpFilter
}

// httpFilters are the HTTP filters in the order in which a request meets them.
func httpFilters(plugins Plugins) []filterRow {
	return []filterRow{
		{plugins: plugins[extensionsv1alpha1.PluginPhase_AUTHN], reason: "say who calls, before the mesh looks at tokens"},
		{plugins: plugins[extensionsv1alpha1.PluginPhase_AUTHZ], reason: "say who may, knowing who calls and before the rules of the mesh"},
		{plugins: plugins[extensionsv1alpha1.PluginPhase_STATS], reason: "see the requests that were let in"},
		{plugins: plugins[extensionsv1alpha1.PluginPhase_UNSPECIFIED_PHASE], reason: "the last of the user's, before what answers in the place of the upstream"},
		{name: grpcStatsFilter, config: &grpcstatsv3.FilterConfig{EmitFilterState: true, PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)}}, reason: "counts every gRPC request, also those that later filters answer"},
		{name: FaultFilter, config: &faultv3.HTTPFault{}, reason: "stands for the upstream, so behind what counts requests; idle unless the route names a fault"},
		{name: CORSFilter, config: &corsv3.Cors{}, reason: "answers preflights that no fault hit; idle unless the route has a policy"},
		{name: "envoy.filters.http.router", config: &routerv3.Router{}, reason: "terminal: sends the request, so nothing can follow"},
	}
}

// commonHTTP is what all connection managers share.
func commonHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, plugins Plugins) *hcmv3.HttpConnectionManager {
	hcm := &hcmv3.HttpConnectionManager{
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		StatPrefix:        statPrefix,
		StreamIdleTimeout: durationpb.New(0),
		UseRemoteAddress:  wrapperspb.Bool(false),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		AccessLog:         AccessLog(mesh),
	}
	normalizePaths(hcm, mesh)
	for _, row := range httpFilters(plugins) {
		hcm.HttpFilters = append(hcm.HttpFilters, row.plugins...)
		if row.config == nil {
			continue
		}
		hcm.HttpFilters = append(hcm.HttpFilters, &hcmv3.HttpFilter{
			Name: row.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(row.config)},
		})
	}
	return hcm
}

// OutboundHTTP serves the requests of the application; it may speak to us as
// to an HTTP proxy, with whole URLs.
func OutboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, plugins Plugins) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, plugins)
	hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	return hcm
}

// InboundHTTP serves requests to the application. The application reads who calls in
// x-forwarded-client-cert: what the caller itself writes there is replaced.
func InboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, plugins Plugins) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, plugins)
	hcm.ServerName = "istio-envoy"
	hcm.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
	hcm.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Uri: true, Dns: true,
	}
	return hcm
}

// normalizePaths makes requests comparable before anything matches their path.
func normalizePaths(hcm *hcmv3.HttpConnectionManager, mesh *meshv1alpha1.MeshConfig) {
	const unescape = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	switch mesh.GetPathNormalization().GetNormalization() {
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE:
		return
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_DEFAULT, meshv1alpha1.MeshConfig_ProxyPathNormalization_BASE:
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		hcm.MergeSlashes = true
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		hcm.MergeSlashes, hcm.PathWithEscapedSlashesAction = true, unescape
	}
	hcm.NormalizePath = wrapperspb.Bool(true)
}

func HTTPFilter(hcm *hcmv3.HttpConnectionManager) *listenerv3.Filter {
	return &listenerv3.Filter{
		Name:       "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Pack(hcm)},
	}
}
