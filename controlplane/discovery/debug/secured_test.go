// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestDecidingMode checks which PeerAuthentication decides about a port.
func TestDecidingMode(t *testing.T) {
	t.Parallel()
	mode := func(m securityv1beta1.PeerAuthentication_MutualTLS_Mode) *securityv1beta1.PeerAuthentication_MutualTLS {
		return &securityv1beta1.PeerAuthentication_MutualTLS{Mode: m}
	}
	of := func(name string, spec *securityv1beta1.PeerAuthentication) *model.Config {
		return &model.Config{Key: model.Key{Kind: model.PeerAuthentication, Name: name}, Spec: spec}
	}
	const strict, off = securityv1beta1.PeerAuthentication_MutualTLS_STRICT, securityv1beta1.PeerAuthentication_MutualTLS_DISABLE
	selector := &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "web"}}
	ports := map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS{8080: mode(off)}
	mesh, empty := of("mesh", &securityv1beta1.PeerAuthentication{Mtls: mode(strict)}), of("empty", &securityv1beta1.PeerAuthentication{})
	workload, without := of("workload", &securityv1beta1.PeerAuthentication{Selector: selector, PortLevelMtls: ports}), of("without", &securityv1beta1.PeerAuthentication{PortLevelMtls: ports})
	for _, tc := range []struct {
		list []*model.Config
		port uint32
		want *model.Config
	}{
		{nil, 8080, nil},
		{[]*model.Config{empty}, 8080, nil},
		{[]*model.Config{mesh, empty}, 8080, mesh},
		{[]*model.Config{mesh, workload}, 8080, workload},
		{[]*model.Config{mesh, workload}, 9090, mesh},
		{[]*model.Config{mesh, without}, 8080, mesh},
	} {
		if got := decidingMode(tc.list, tc.port); got != tc.want {
			t.Errorf("decidingMode(%v, %d) = %v, want %v", tc.list, tc.port, got, tc.want)
		}
	}
}
