// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// resolveHost returns the full name of a host. "*", addresses and names with a dot are returned
// unchanged except for case; a short name is a service of the namespace.
func (s settings) resolveHost(host, namespace string) string {
	if host == "" || strings.ContainsAny(host, ".*") {
		return strings.ToLower(host)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	return strings.ToLower(host) + "." + namespace + ".svc." + s.domain
}

// isWildcard reports whether a host is a wildcard ("*", "*.example.com").
func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

// HostMatches reports whether a pattern covers a host or a narrower wildcard.
func HostMatches(pattern, host string) bool {
	suffix, wild := strings.CutPrefix(pattern, "*")
	if !wild {
		return pattern == host
	}
	return strings.HasSuffix(strings.TrimPrefix(host, "*"), suffix)
}

// visible reports whether the namespace viewer can see an object of the namespace owner with this
// exportTo list. An empty list exports to all namespaces.
func visible(exportTo []string, owner, viewer string) bool {
	if len(exportTo) == 0 {
		return true
	}
	return slices.ContainsFunc(exportTo, func(to string) bool {
		return to == "*" || to == viewer || to == "." && owner == viewer
	})
}

// Exported reports whether the namespace viewer can see a VirtualService or a DestinationRule.
func (m *Mesh) Exported(c *model.Config, viewer string) bool {
	set := m.settings()
	switch spec := c.Spec.(type) {
	case *networkingv1alpha3.VirtualService:
		return visible(exportTo(spec.GetExportTo(), set.exportRoutes), c.Namespace, viewer)
	case *networkingv1alpha3.DestinationRule:
		return visible(exportTo(spec.GetExportTo(), set.exportRules), c.Namespace, viewer)
	}
	return true
}

// mostSpecific compares hosts for matching: exact hosts come before wildcards, longer wildcards
// before shorter ones.
func mostSpecific(a, b string) int {
	if wa, wb := isWildcard(a), isWildcard(b); wa != wb {
		if wb {
			return -1
		}
		return 1
	}
	if len(a) != len(b) {
		return len(b) - len(a)
	}
	return strings.Compare(a, b)
}
