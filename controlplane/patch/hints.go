// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package patch

import (
	"fmt"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/config/validate"
)

// hints returns why parts of a valid patch have no effect.
func (p *Patch) hints() (out []string) {
	l := p.match.GetListener()
	f := l.GetFilterChain().GetFilter()
	if l.GetPortName() != "" {
		out = append(out, ".match.listener.portName has no effect, as in Istio: write portNumber")
	}
	for path, name := range map[string]string{".name": f.GetName(), ".subFilter.name": f.GetSubFilter().GetName()} {
		if use := validate.ServedBy(name); use != "" {
			out = append(out, ".match.listener.filterChain.filter"+path+" is "+field.Quote(name)+", a filter that only Istio's Envoy has, so the patch matches nothing: "+use)
		}
	}
	if p.class != networkingv1alpha3.EnvoyFilter_Patch_UNSPECIFIED && (p.ApplyTo != httpFilter || p.Operation != add) {
		out = append(out, ".patch.filterClass has no effect without applyTo: HTTP_FILTER and operation: ADD: remove it")
	}
	if p.ApplyTo == bootstrap && p.match.GetContext() != networkingv1alpha3.EnvoyFilter_ANY {
		out = append(out, ".match.context has no effect on BOOTSTRAP, as in Istio: select workloads, or match proxyVersion or metadata")
	}
	return out
}

// Idle says that the patch with an index changes nothing of a number of proxies.
func Idle(i int, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, proxies int) string {
	return fmt.Sprintf("%s (%s %s) changes nothing: none of %d proxies has what it matches",
		field.Index("spec.configPatches", i), p.GetApplyTo(), p.GetPatch().GetOperation(), proxies)
}
