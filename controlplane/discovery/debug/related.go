// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// explainedRequest is the answer about a request, with the findings about objects that have to do with it.
type explainedRequest struct {
	report.Decision
	Findings []analyze.Finding `json:"findings,omitempty"`
}

// related returns the findings about objects that have to do with a request: those for its hosts, and those
// for its proxies.
func (d debugger) related(out report.Decision) ([]analyze.Finding, error) {
	answer, err := d.analyze()
	if err != nil {
		return nil, err
	}
	result, _ := answer.json.(analyze.Result)
	objects := map[analyze.Object]*model.Config{}
	for _, sch := range d.cfg.Objects.Schemas() {
		for _, c := range d.cfg.Objects.List(sch.Kind, "") {
			objects[analyze.ObjectOf(c.Key)] = c
		}
	}
	var proxies []*model.Proxy
	for one := &out; one != nil; one = one.Gateway {
		names := []string{one.Proxy}
		if one.Client != nil {
			names = append(names, one.Client.Proxy)
		}
		for _, name := range names {
			if st := named(d.followers(), name); st != nil {
				proxies = append(proxies, st.Proxy)
			}
		}
	}
	hosts := d.hostsOf(out)
	return slices.DeleteFunc(result.Findings, func(f analyze.Finding) bool {
		if c := objects[f.Object]; c != nil {
			return !d.concerns(c, f.Code, hosts, proxies)
		}
		// One that was refused may be for any host, and any workload of its namespace.
		return f.Severity != analyze.Error || !slices.ContainsFunc(proxies, func(p *model.Proxy) bool { return p.Namespace == f.Object.Namespace })
	}), nil
}

// noWorkload is the code of findings about selectors that select nothing.
const noWorkload = "IST0127"

// concerns reports whether an object, about which there is a finding with a code, has to do with hosts or
// proxies.
func (d debugger) concerns(c *model.Config, code string, hosts []string, proxies []*model.Proxy) bool {
	any := func(names []string) bool {
		return slices.ContainsFunc(names, func(h string) bool { return d.covers(h, c.Namespace, hosts) })
	}
	switch spec := c.Spec.(type) {
	case *networkingv1alpha3.VirtualService:
		return any(spec.GetHosts())
	case *networkingv1alpha3.DestinationRule:
		return any([]string{spec.GetHost()})
	case *networkingv1alpha3.ServiceEntry:
		return any(spec.GetHosts())
	case *networkingv1alpha3.Gateway:
		return slices.ContainsFunc(proxies, func(p *model.Proxy) bool { return p.Role == node.Router }) &&
			slices.ContainsFunc(spec.GetServers(), func(s *networkingv1alpha3.Server) bool {
				return slices.ContainsFunc(s.GetHosts(), func(h string) bool { return any([]string{h[strings.IndexByte(h, '/')+1:]}) })
			})
	}
	labels, ok := analyze.SelectorOf(c)
	root := d.mesh.Config.GetRootNamespace()
	return slices.ContainsFunc(proxies, func(p *model.Proxy) bool {
		own := c.Namespace == p.Namespace || c.Namespace == root
		if code == noWorkload {
			return own || model.Selects(labels, p.Labels)
		}
		return own && (!ok || model.Selects(labels, p.Labels))
	})
}
