// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"net"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ClusterLocal is the set of services whose requests stay in the cluster of the client. A nil
// ClusterLocal is empty.
type ClusterLocal struct {
	hosts    map[string]bool
	suffixes []string // of wildcard hosts, including the dot; sorted
}

// Has reports whether requests for a host stay in the cluster of the client.
func (c *ClusterLocal) Has(host string) bool {
	if c == nil {
		return false
	}
	return c.hosts[host] || slices.ContainsFunc(c.suffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) })
}

// newClusterLocal reads serviceSettings of the mesh config. It returns old if nothing changed. By
// default, the services of kube-system, the API server and the control plane are cluster-local, as
// in Istio; a setting can exclude such a host.
func newClusterLocal(old *ClusterLocal, config *meshv1alpha1.MeshConfig, domain string) *ClusterLocal {
	discovery := config.GetDefaultConfig().GetDiscoveryAddress()
	if host, _, err := net.SplitHostPort(discovery); err == nil {
		discovery = host
	}
	defaults := map[string]bool{"*.kube-system.svc." + domain: true, "kubernetes.default.svc." + domain: true}
	if discovery != "" {
		if !strings.HasSuffix(discovery, "."+domain) {
			discovery += "." + domain
		}
		defaults[strings.ToLower(discovery)] = true
	}
	c := &ClusterLocal{hosts: map[string]bool{}}
	for _, setting := range config.GetServiceSettings() {
		for _, host := range setting.GetHosts() {
			host = strings.ToLower(host)
			if setting.GetSettings().GetClusterLocal() {
				c.add(host)
				continue
			}
			maps.DeleteFunc(defaults, func(pattern string, _ bool) bool { return HostMatches(pattern, host) })
		}
	}
	for host := range defaults {
		c.add(host)
	}
	slices.Sort(c.suffixes)
	c.suffixes = slices.Compact(c.suffixes)
	if old != nil && maps.Equal(old.hosts, c.hosts) && slices.Equal(old.suffixes, c.suffixes) {
		return old
	}
	return c
}

func (c *ClusterLocal) add(host string) {
	if suffix, wild := strings.CutPrefix(host, "*"); wild {
		c.suffixes = append(c.suffixes, suffix)
	} else {
		c.hosts[host] = true
	}
}
