// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// commonHTTP is what all connection managers share.
func commonHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := &hcmv3.HttpConnectionManager{
		CodecType:         hcmv3.HttpConnectionManager_AUTO,
		StatPrefix:        statPrefix,
		StreamIdleTimeout: durationpb.New(0),
		UseRemoteAddress:  wrapperspb.Bool(false),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		AccessLog:         AccessLog(mesh),
	}
	normalizePaths(hcm, mesh)
	filters.Apply(hcm)
	return hcm
}

// OutboundHTTP serves the requests of the application; it may speak to us as
// to an HTTP proxy, with whole URLs.
func OutboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, filters)
	hcm.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AllowAbsoluteUrl: wrapperspb.Bool(true)}
	return hcm
}

// InboundHTTP serves requests to the application. The application reads who calls in
// x-forwarded-client-cert: what the caller itself writes there is replaced.
func InboundHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, filters)
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
