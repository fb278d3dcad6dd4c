// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

func validateProxyConfig(c *checker, cfg *model.Config) {
	pc, ok := cfg.Spec.(*networkingv1beta1.ProxyConfig)
	if !ok {
		return
	}
	c.workloads(pc.GetSelector())
	if n := pc.GetConcurrency().GetValue(); n < 0 {
		c.errorf("spec.concurrency", "is %d: write the number of worker threads, or 0 for one for each core", n)
	}
	const most = 2048
	for k, v := range field.Sorted(pc.GetEnvironmentVariables()) {
		if k == "" {
			c.errorf("spec.environmentVariables", "has an empty key: write the name of a variable")
		}
		if len(v) > most {
			c.errorf("spec.environmentVariables["+k+"]", "has %d characters: at most %d are allowed", len(v), most)
		}
	}
}
