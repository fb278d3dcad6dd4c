// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"fmt"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// hostPort is a port of a host.
type hostPort struct {
	host string
	port uint32
}

// serviceEntries checks ServiceEntries, and what RequestAuthentications demand of ports.
func (a *analysis) serviceEntries() {
	type definition struct {
		protocol string
		by       *model.Config
	}
	seen := map[hostPort]definition{}
	each(a, model.ServiceEntry, func(c *model.Config, spec *networkingv1alpha3.ServiceEntry) {
		a.plaintext(c, spec)
		for i, p := range spec.GetPorts() {
			for _, h := range spec.GetHosts() {
				a.steps++
				key := hostPort{strings.ToLower(h), p.GetNumber()}
				first, ok := seen[key]
				if !ok {
					seen[key] = definition{strings.ToUpper(p.GetProtocol()), c}
				} else if first.by != c && first.protocol != strings.ToUpper(p.GetProtocol()) {
					a.report("IST0177", c, fmt.Sprintf("spec.ports[%d]: the port %d of %q is %s here and %s in the older ServiceEntry %s.", i, p.GetNumber(), h, p.GetProtocol(), first.protocol, nameOf(first.by)), "Use one protocol.")
				}
			}
		}
	})
	a.tokenPorts()
}

// tokenPorts finds ports that are not HTTP at workloads of a RequestAuthentication.
func (a *analysis) tokenPorts() {
	each(a, model.RequestAuthentication, func(c *model.Config, spec *securityv1beta1.RequestAuthentication) {
		labels := spec.GetSelector().GetMatchLabels()
		if len(labels) == 0 {
			return // for whole namespaces, which have other workloads too
		}
		for _, w := range a.selected(a.scope(c), labels) {
			for _, p := range a.streams(w) {
				a.report("IST0119", c, fmt.Sprintf("No token is read at the port %d of the service %q, which the object selects: the port is %s, not HTTP.", p.port.Number, p.service.Hostname, p.port.Protocol),
					"Begin the name of the port with http-, or correct the selector.")
				return
			}
		}
	})
}
