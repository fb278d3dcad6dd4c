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
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// The names of the filters that routes speak to.
const (
	FaultFilter = "envoy.filters.http.fault"
	CORSFilter  = "envoy.filters.http.cors"
)

// filterRow is one HTTP filter of every connection manager.
type filterRow struct {
	name   string
	config proto.Message
	reason string // why it stands where it stands
}

// httpFilters are the HTTP filters in the order in which a request meets them.
func httpFilters() []filterRow {
	return []filterRow{
		{"envoy.filters.http.grpc_stats", &grpcstatsv3.FilterConfig{EmitFilterState: true, PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wrapperspb.Bool(false)}}, "counts every gRPC request, also those that later filters answer"},
		{FaultFilter, &faultv3.HTTPFault{}, "stands for the upstream, so behind what counts requests; idle unless the route names a fault"},
		{CORSFilter, &corsv3.Cors{}, "answers preflights that no fault hit; idle unless the route has a policy"},
		{"envoy.filters.http.router", &routerv3.Router{}, "terminal: sends the request, so nothing can follow"},
	}
}

// commonHTTP is what all connection managers share.
func commonHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string) *hcmv3.HttpConnectionManager {
	hcm := &hcmv3.HttpConnectionManager{
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		StatPrefix:        statPrefix,
		StreamIdleTimeout: durationpb.New(0),
		UseRemoteAddress:  wrapperspb.Bool(false),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		AccessLog:         AccessLog(mesh),
	}
	normalizePaths(hcm, mesh)
	for _, row := range httpFilters() {
		hcm.HttpFilters = append(hcm.HttpFilters, &hcmv3.HttpFilter{
			Name: row.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Pack(row.config)},
		})
	}
	return hcm
}

// OutboundHTTP serves the requests of the application; it may speak to us as
// to an HTTP proxy, with whole URLs.
func OutboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix)
	hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	return hcm
}

// InboundHTTP serves requests to the application, and tells it who calls.
func InboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix)
	hcm.ServerName = "istio-envoy"
	hcm.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
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
