// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cluster

import (
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// TestUnknownProtocol checks the HTTP version in which requests are forwarded to ports of unknown
// protocol: that of the client in sidecars, HTTP/1.1 in gateways, unless a rule says otherwise.
func TestUnknownProtocol(t *testing.T) {
	t.Parallel()
	mesh := &meshv1alpha1.MeshConfig{H2UpgradePolicy: meshv1alpha1.MeshConfig_UPGRADE}
	for name, tc := range map[string]struct {
		router bool
		pool   *networkingv1alpha3.ConnectionPoolSettings_HTTPSettings
		want   string
	}{
		"sidecar":                {want: "client"},
		"gateway":                {router: true, want: "1"},
		"gateway, as the client": {router: true, pool: &networkingv1alpha3.ConnectionPoolSettings_HTTPSettings{UseClientProtocol: true}, want: "client"},
		"gateway, HTTP/2": {router: true, pool: &networkingv1alpha3.ConnectionPoolSettings_HTTPSettings{
			H2UpgradePolicy: networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE,
		}, want: "2"},
	} {
		src := Source{OfRouter: tc.router, Port: model.Port{Number: 80, Protocol: model.ProtocolUnsupported}}
		if tc.pool != nil {
			src.Rule = &snapshot.DestinationRule{Policy: &networkingv1alpha3.TrafficPolicy{ConnectionPool: &networkingv1alpha3.ConnectionPoolSettings{Http: tc.pool}}}
		}
		opts := src.Policy().httpOptions(src.Port.Protocol, mesh)
		got := "1"
		switch {
		case opts.GetUseDownstreamProtocolConfig() != nil:
			got = "client"
		case opts.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil:
			got = "2"
		}
		if got != tc.want {
			t.Errorf("%s: requests are forwarded as %s, want %s", name, got, tc.want)
		}
	}
}
