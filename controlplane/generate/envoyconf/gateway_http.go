// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import (
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// GatewayHTTP returns the connection manager for clients outside the mesh. The topology determines
// which client addresses and certificates are trusted. A nil topology means that no proxy precedes
// the gateway and only those of the connection are trusted.
func GatewayHTTP(mesh *meshv1alpha1.MeshConfig, statPrefix string, topology *meshv1alpha1.Topology, filters Filters) *hcmv3.HttpConnectionManager {
	hcm := commonHTTP(mesh, statPrefix, node.RecordLog, filters)
	hcm.ServerName = "istio-envoy"
	hcm.UseRemoteAddress = wrapperspb.Bool(true)
	hcm.XffNumTrustedHops = topology.GetNumTrustedProxies()
	hcm.ForwardClientCertDetails = forwardCertificate(topology.GetForwardClientCertDetails())
	switch hcm.GetForwardClientCertDetails() {
	case hcmv3.HttpConnectionManager_APPEND_FORWARD, hcmv3.HttpConnectionManager_SANITIZE_SET:
		hcm.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: wrapperspb.Bool(true), Cert: true, Uri: true, Dns: true,
		}
	}
	return hcm
}

// forwardCertificate returns how the header with the client certificate is handled. UNDEFINED
// means SANITIZE_SET.
func forwardCertificate(details meshv1alpha1.ForwardClientCertDetails) hcmv3.HttpConnectionManager_ForwardClientCertDetails {
	switch details {
	case meshv1alpha1.ForwardClientCertDetails_SANITIZE:
		return hcmv3.HttpConnectionManager_SANITIZE
	case meshv1alpha1.ForwardClientCertDetails_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_FORWARD_ONLY
	case meshv1alpha1.ForwardClientCertDetails_APPEND_FORWARD:
		return hcmv3.HttpConnectionManager_APPEND_FORWARD
	case meshv1alpha1.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY
	case meshv1alpha1.ForwardClientCertDetails_UNDEFINED, meshv1alpha1.ForwardClientCertDetails_SANITIZE_SET:
	}
	return hcmv3.HttpConnectionManager_SANITIZE_SET
}
