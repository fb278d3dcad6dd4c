// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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

// definition is what a ServiceEntry says about a port of a host.
type definition struct {
	protocol string
	by       *model.Config
}

// serviceEntries checks ServiceEntries, and what RequestAuthentications demand of ports.
func (a *analysis) serviceEntries() {
	seen := map[hostPort]map[string]definition{} // by the namespace that sees it, "*" for all
	each(a, model.ServiceEntry, func(c *model.Config, spec *networkingv1alpha3.ServiceEntry) {
		a.plaintext(c, spec)
		exportTo := spec.GetExportTo()
		if len(exportTo) == 0 {
			exportTo = a.Mesh.Config.GetDefaultServiceExportTo()
		}
		if len(exportTo) == 0 || slices.Contains(exportTo, "*") {
			exportTo = []string{"*"}
		}
		for i, p := range spec.GetPorts() {
			for _, h := range spec.GetHosts() {
				key := hostPort{strings.ToLower(h), p.GetNumber()}
				if seen[key] == nil {
					seen[key] = map[string]definition{}
				}
				this := definition{cmp.Or(strings.ToUpper(p.GetProtocol()), "without a protocol"), c}
				if first := a.disagrees(seen[key], exportTo, this); first.by != nil {
					a.report("IST0177", c, fmt.Sprintf("spec.ports[%d]: the port %d of %q is %s here and %s in the older ServiceEntry %s.", i, p.GetNumber(), h, this.protocol, first.protocol, nameOf(first.by)), "Use one protocol.")
				}
			}
		}
	})
	a.tokenPorts()
}

// disagrees records a definition for the namespaces that see it, and returns an older one with another
// protocol that one of them sees too.
func (a *analysis) disagrees(seen map[string]definition, exportTo []string, this definition) (first definition) {
	compare := func(older definition) {
		if a.steps++; first.by == nil && older.by != nil && older.by != this.by && older.protocol != this.protocol {
			first = older
		}
	}
	for _, viewer := range exportTo {
		if viewer == "." {
			viewer = this.by.Namespace
		}
		_, known := seen[viewer]
		switch {
		case viewer == "~":
			continue
		case viewer == "*" && !known:
			for _, of := range slices.Sorted(maps.Keys(seen)) {
				compare(seen[of])
			}
		default:
			compare(seen["*"])
			compare(seen[viewer])
		}
		if !known {
			seen[viewer] = this
		}
	}
	return first
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
