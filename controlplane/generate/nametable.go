// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

const (
	// registryExternal is Istio's name of the registry of ServiceEntry objects.
	registryExternal = "External"
	// clusterSetSuffix is the suffix of hosts that several clusters share.
	clusterSetSuffix = ".clusterset.local"
)

// nameTableName is the name of the only resource of its type.
const nameTableName = "name-table"

// nameTable returns the single NDS resource, which contains the names that the agent of a proxy
// resolves. It omits names without an address; they are resolved by the upstream DNS server.
func (g *Generator) nameTable(s *target) *xds.Set {
	v := g.view(s)
	from := inputs{v}
	if v.headless {
		from[1] = s.mesh.Endpoints // changes often and affects headless services only
	}
	key := setKey{typeURL: xds.TypeNameTable, outbound: s.outbound}
	key.outbound.rules += " " + strconv.Quote(sees(s.proxy)) + " " + strconv.Quote(s.proxy.Network)
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		r := g.table.PutBytes(xds.TypeNameTable, nameTableName, tableOf(s.proxy, v.services, s.mesh.Endpoints).Marshal())
		return xds.NewSet(prev, []*xds.Resource{r}, nil)
	})
}

// isHeadless reports whether the name of a service resolves to its endpoints.
func isHeadless(svc *model.Service) bool { return svc.Headless }

// tableOf returns the names of services with their addresses as seen by a proxy.
func tableOf(proxy *model.Proxy, services []*model.Service, endpoints *snapshot.Endpoints) *nds.Table {
	t := &nds.Table{Hosts: make(map[string]nds.Host, len(services))}
	for _, svc := range services {
		if !utf8.ValidString(svc.Hostname) {
			continue // the agent would reject the whole table
		}
		host := hostOf(svc)
		if isHeadless(svc) {
			host.IPs = podsOf(t, proxy, svc, endpoints.Of(svc.ServiceKey))
		} else {
			for _, a := range svc.AddressesFor(proxy) {
				if envoyconf.IsIP(a) { // not a CIDR range
					host.IPs = append(host.IPs, a)
				}
			}
		}
		there := t.Hosts[svc.Hostname]
		if len(host.IPs) == 0 || there.Registry == nds.Kubernetes && host.Registry != nds.Kubernetes {
			continue // the Kubernetes service takes precedence
		}
		t.Hosts[svc.Hostname] = host
	}
	return t
}

// hostOf returns the host of a service without its addresses.
func hostOf(svc *model.Service) nds.Host {
	if svc.Registry != model.RegistryKubernetes {
		return nds.Host{Registry: registryExternal}
	}
	h := nds.Host{Registry: nds.Kubernetes}
	if !strings.HasSuffix(svc.Hostname, clusterSetSuffix) {
		h.Shortname, _, _ = strings.Cut(svc.Hostname, ".")
		h.Namespace = svc.Namespace
	}
	return h
}

// podsOf returns the addresses of a headless service. It also adds pods that have their own names,
// as the DNS server of Kubernetes does. It omits pods of other networks, which cannot be reached
// at their addresses. If several pods share a name, those in the cluster of the proxy win.
func podsOf(t *nds.Table, proxy *model.Proxy, svc *model.Service, set *snapshot.EndpointSet) []string {
	if set == nil {
		return nil
	}
	_, domain, _ := strings.Cut(svc.Hostname, ".")
	own := map[string]bool{} // names of pods in the cluster of the proxy
	var all []string
	for _, ep := range set.List {
		if !envoyconf.IsIP(ep.Address) || ep.Draining || ep.HiddenFrom(proxy.ClusterID) || ep.Network != "" && proxy.Network != "" && ep.Network != proxy.Network {
			continue
		}
		all = append(all, ep.Address)
		if ep.Hostname == "" || domain == "" {
			continue
		}
		name, near := ep.Hostname+"."+domain, ep.Cluster == proxy.ClusterID
		switch there, ok := t.Hosts[name]; {
		case ok && there.Registry == nds.Kubernetes && there.Shortname != ep.Hostname: // the name belongs to a service
		case ok && there.Registry == nds.Kubernetes && slices.Contains(there.IPs, ep.Address): // the same pod with another port
		case own[name] && !near:
		default:
			own[name] = own[name] || near
			t.Hosts[name] = nds.Host{IPs: []string{ep.Address}, Registry: nds.Kubernetes, Shortname: ep.Hostname, Namespace: svc.Namespace}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
