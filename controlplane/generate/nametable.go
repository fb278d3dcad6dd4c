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
	// registryExternal is how Istio writes the registry of ServiceEntry objects.
	registryExternal = "External"
	// clusterSetSuffix ends the hosts of services that several clusters share.
	clusterSetSuffix = ".clusterset.local"
)

// nameTableName is the name of the only resource of its type.
const nameTableName = "name-table"

// nameTable returns the one NDS resource: the names that the agent of a proxy
// answers for. Names without an address are left out, and are asked elsewhere.
func (g *Generator) nameTable(s *target) *xds.Set {
	v := g.view(s)
	from := inputs{v}
	if v.headless {
		from[1] = s.mesh.Endpoints // changes often, and matters to nobody else
	}
	key := setKey{typeURL: xds.TypeNameTable, outbound: s.outbound}
	key.outbound.rules += " " + strconv.Quote(sees(s.proxy)) + " " + strconv.Quote(s.proxy.Network)
	return g.sets.get(key, s.mesh.Sequence, from, func(prev *xds.Set) *xds.Set {
		r := g.table.PutBytes(xds.TypeNameTable, nameTableName, tableOf(s.proxy, v.services, s.mesh.Endpoints).Marshal())
		return xds.NewSet(prev, []*xds.Resource{r}, nil)
	})
}

// isHeadless reports whether the endpoints of a service are what its name
// stands for.
func isHeadless(svc *model.Service) bool { return svc.Headless }

// tableOf returns the names of services as a proxy sees their addresses.
func tableOf(proxy *model.Proxy, services []*model.Service, endpoints *snapshot.Endpoints) *nds.Table {
	t := &nds.Table{Hosts: make(map[string]nds.Host, len(services))}
	for _, svc := range services {
		if !utf8.ValidString(svc.Hostname) {
			continue // the agent would refuse the whole table
		}
		host := hostOf(svc)
		if isHeadless(svc) {
			host.IPs = podsOf(t, proxy, svc, endpoints.Of(svc.ServiceKey))
		} else {
			for _, a := range svc.AddressesFor(proxy) {
				if envoyconf.IsIP(a) { // and not a range
					host.IPs = append(host.IPs, a)
				}
			}
		}
		there := t.Hosts[svc.Hostname]
		if len(host.IPs) == 0 || there.Registry == nds.Kubernetes && host.Registry != nds.Kubernetes {
			continue // what Kubernetes says of a name goes first
		}
		t.Hosts[svc.Hostname] = host
	}
	return t
}

// hostOf says of a service all but its addresses.
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

// podsOf returns the addresses of a headless service, and enters the pods that
// have a name of their own, as the DNS server of Kubernetes does. Pods of another
// network cannot be reached at their addresses. Of pods of the same name the one
// in the cluster of the proxy is meant.
func podsOf(t *nds.Table, proxy *model.Proxy, svc *model.Service, set *snapshot.EndpointSet) []string {
	if set == nil {
		return nil
	}
	_, domain, _ := strings.Cut(svc.Hostname, ".")
	own := map[string]bool{} // names of pods in the cluster of the proxy
	var all []string
	for _, ep := range set.List {
		if !envoyconf.IsIP(ep.Address) || ep.Draining || ep.Network != "" && proxy.Network != "" && ep.Network != proxy.Network {
			continue
		}
		all = append(all, ep.Address)
		if ep.Hostname == "" || domain == "" {
			continue
		}
		name, near := ep.Hostname+"."+domain, ep.Cluster == proxy.ClusterID
		switch there, ok := t.Hosts[name]; {
		case ok && there.Registry == nds.Kubernetes && there.Shortname != ep.Hostname: // the name of a service
		case ok && there.Registry == nds.Kubernetes && slices.Contains(there.IPs, ep.Address): // one more port
		case own[name] && !near:
		default:
			own[name] = own[name] || near
			t.Hosts[name] = nds.Host{IPs: []string{ep.Address}, Registry: nds.Kubernetes, Shortname: ep.Hostname, Namespace: svc.Namespace}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
