// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"fmt"
	"maps"
	"slices"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validatePeerAuthentication(c *checker, cfg *model.Config) {
	pa, ok := cfg.Spec.(*securityv1beta1.PeerAuthentication)
	if !ok {
		return
	}
	c.workloads(pa.GetSelector())
	if len(pa.GetPortLevelMtls()) > 0 && len(pa.GetSelector().GetMatchLabels()) == 0 {
		c.errorf("spec.portLevelMtls", "needs a selector that names the workloads: write selector, or remove it")
	}
	for _, n := range slices.Sorted(maps.Keys(pa.GetPortLevelMtls())) {
		c.port(n, fmt.Sprintf("spec.portLevelMtls[%d]", n))
	}
}
