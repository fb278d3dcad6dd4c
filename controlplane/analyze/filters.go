// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// envoyFilters finds objects whose effect depends on other EnvoyFilters. The snapshot finds operations
// that have no effect.
func (a *analysis) envoyFilters() {
	each(a, model.EnvoyFilter, func(c *model.Config, spec *networkingv1alpha3.EnvoyFilter) {
		relative := slices.ContainsFunc(spec.GetConfigPatches(), func(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) bool {
			switch p.GetPatch().GetOperation() {
			case networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE, networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER, networkingv1alpha3.EnvoyFilter_Patch_REPLACE:
				return true
			}
			return false
		})
		if !relative || spec.GetPriority() != 0 || !a.several(c) {
			return
		}
		code, when := "IST0151", ""
		if slices.ContainsFunc(spec.GetConfigPatches(), func(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) bool {
			return p.GetMatch().GetProxy().GetProxyVersion() != ""
		}) {
			code, when = "IST0155", " and for some versions of proxies"
		}
		a.report(code, c, fmt.Sprintf("The object places patches relative to others without a priority%s, so its effect depends on the age of other EnvoyFilters.", when), "Write priority, or INSERT_FIRST.")
	})
}

// several reports whether other EnvoyFilters can apply to the same proxies: of the namespace or of the
// root namespace.
func (a *analysis) several(c *model.Config) bool {
	n := 0
	for _, o := range a.kinds[model.EnvoyFilter] {
		a.steps++
		if o.Namespace == c.Namespace || o.Namespace == a.root() || c.Namespace == a.root() {
			if n++; n > 1 {
				return true
			}
		}
	}
	return false
}
