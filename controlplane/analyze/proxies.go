// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Proxies returns the proxies that workloads of the input would have. Where objects select workloads
// that are not part of it, one with their labels is assumed, and one without labels for each namespace
// with objects. Run need not have been called; Build must have been.
func (in Input) Proxies() []*model.Proxy {
	a := newAnalysis(in)
	var routers []map[string]string
	each(a, model.Gateway, func(_ *model.Config, spec *networkingv1alpha3.Gateway) {
		if len(spec.GetSelector()) > 0 {
			routers = append(routers, spec.GetSelector())
		}
	})
	endpoints := map[objectName]*model.Endpoint{}
	for _, svc := range a.Mesh.Services.Sorted {
		for _, ep := range a.endpoints(svc) {
			if ep.Namespace != "" && ep.Address != "" && !svc.External {
				endpoints[objectName{ep.Namespace, ep.Workload}] = ep
			}
		}
	}
	var out []*model.Proxy
	seen := map[string]bool{}
	add := func(w Workload) {
		p := &model.Proxy{
			ID: w.Name + "." + w.Namespace, Role: "sidecar", Namespace: w.Namespace, ServiceAccount: "default", Labels: w.Labels,
			Domain: w.Namespace + ".svc." + defaultDomain, Interception: model.InterceptionRedirect, AutoAllocate: true,
			IPs: []string{fmt.Sprintf("2001:db8:1::%x", len(out)+1)}, // the range of documentation: nobody's
		}
		if slices.ContainsFunc(routers, func(selector map[string]string) bool { return model.Selects(selector, w.Labels) }) {
			p.Role = "router"
		}
		key := fmt.Sprintf("%s %s %s", p.Role, w.Namespace, labelText(w.Labels))
		if ep := endpoints[objectName{w.Namespace, w.Name}]; ep != nil {
			p.IPs, p.ServiceAccount = []string{ep.Address}, cmp.Or(ep.ServiceAccount, p.ServiceAccount)
			key += " " + w.Name
		}
		if !seen[key] {
			seen[key] = true
			out = append(out, p)
		}
	}
	for _, w := range a.workloads.all {
		add(*w)
	}
	for _, c := range in.Objects {
		labels, ok := SelectorOf(c)
		if spec, gateway := c.Spec.(*networkingv1alpha3.Gateway); gateway {
			labels, ok = spec.GetSelector(), true
		}
		if ok && len(labels) > 0 && !a.selects(a.scope(c), labels) {
			add(Workload{Namespace: c.Namespace, Name: "selected-by-" + c.Name, Labels: labels})
		}
		add(Workload{Namespace: c.Namespace, Name: "any"})
	}
	return out
}
