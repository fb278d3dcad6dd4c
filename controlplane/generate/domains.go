// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// claimDomains sets the domains of the virtual hosts. Envoy rejects a route configuration in which
// two virtual hosts share a domain. Full names are therefore assigned first, then short names,
// then addresses; within each group the first host wins. If withPorts is true, the domains include
// the port.
func claimDomains(hosts []*virtualHost, s *target, withPorts bool) {
	claimed := make(map[string]bool)
	claim := func(h *virtualHost, name string) {
		name = strings.ToLower(name)
		if name == "*" {
			h.claim(claimed, "*")
			return
		}
		if withPorts {
			h.claim(claimed, envoyconf.HostPort(name, h.Port))
		}
		if !withPorts || h.Port == 80 {
			if strings.Contains(name, ":") {
				name = "[" + name + "]"
			}
			h.claim(claimed, name)
		}
	}
	for _, h := range hosts {
		claim(h, h.Name)
	}
	for _, h := range hosts {
		for _, name := range shortNames(h.Name, s.domain()) {
			claim(h, name)
		}
	}
	for _, h := range hosts {
		if h.Service == nil {
			continue
		}
		if h.Service.Headless {
			claim(h, "*."+h.Name)
		}
		for _, address := range h.Service.AddressesFor(s.proxy) {
			if envoyconf.IsIP(address) && address != "0.0.0.0" && address != "::" {
				claim(h, address)
			}
		}
	}
}

func (h *virtualHost) claim(claimed map[string]bool, domain string) {
	if !claimed[domain] {
		claimed[domain] = true
		h.domains = append(h.domains, domain)
	}
}

// shortNames returns the names, other than the full one, by which a proxy with this DNS domain
// ("default.svc.cluster.local") may call a service.
func shortNames(host, proxyDomain string) []string {
	namespace, suffix, _ := strings.Cut(proxyDomain, ".")
	rest, ok := strings.CutSuffix(host, "."+suffix)
	if !ok || suffix == "" {
		return nil
	}
	service, owner, ok := strings.Cut(rest, ".")
	if !ok || strings.Contains(owner, ".") || strings.HasPrefix(service, "*") {
		return nil
	}
	var names []string
	if owner == namespace {
		names = append(names, service)
	}
	names = append(names, rest)
	if strings.HasPrefix(suffix, "svc.") {
		names = append(names, rest+".svc")
	}
	return names
}
