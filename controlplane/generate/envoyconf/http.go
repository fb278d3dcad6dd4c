// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// commonHTTP returns the settings that all connection managers share. record is the runtime key of
// the log of recorded requests.
func commonHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix, record string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := &hcmv3.HttpConnectionManager{
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		StatPrefix:        statPrefix,
		StreamIdleTimeout: durationpb.New(0),
		UseRemoteAddress:  wrapperspb.Bool(false),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		AccessLog:         slices.Concat(filters.Observed.RequestLog, filters.AccessLog, recordLog(record, filters.Records)),

		EarlyHeaderMutationExtensions: filters.Observed.Early,
		Tracing:                       filters.Observed.Tracing,
		RequestIdExtension:            filters.Observed.RequestID,
	}
	normalizePaths(hcm, mesh)
	filters.Apply(hcm)
	return hcm
}

// OutboundHTTP returns the connection manager for requests of the application, which may use Envoy
// as an HTTP proxy with absolute URLs.
func OutboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, node.RecordSentLog, filters)
	hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	return hcm
}

// InboundHTTP returns the connection manager for requests to the application. The application
// reads the identity of the caller from x-forwarded-client-cert; a value that the caller sets is
// replaced.
func InboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, node.RecordLog, filters)
	hcm.ServerName = "istio-envoy"
	hcm.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
	hcm.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Uri: true, Dns: true,
	}
	return hcm
}

// normalizePaths normalizes the paths of requests before anything matches them.
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
