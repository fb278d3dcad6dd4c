// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/registry"
)

// Networks are the gateways between networks.
type Networks = registry.Networks

// Services is the index of service definitions.
type Services struct {
	// Sorted are all services, sorted by host, then namespace.
	Sorted []*model.Service
	// NodeLocal is true if at least one service is node-local.
	NodeLocal bool
	// Distributions are the distributions that services request, sorted.
	Distributions []model.Distribution
	byHost        map[string][]*model.Service // in the order of preferred
	export        string                      // the default exportTo list; see settings
}

// newServices keeps the pointer of each service that did not change. It returns the old index if no
// service changed.
func newServices(old *Services, sorted []*model.Service, set settings) *Services {
	before := make(map[model.ServiceKey]*model.Service)
	if old != nil {
		for _, s := range old.Sorted {
			before[s.ServiceKey] = s
		}
	}
	s := &Services{Sorted: slices.Clone(sorted), export: set.exportServices, byHost: make(map[string][]*model.Service)}
	slices.SortFunc(s.Sorted, func(a, b *model.Service) int { return a.Compare(b.ServiceKey) })
	for i, svc := range s.Sorted {
		if prev, ok := before[svc.ServiceKey]; ok && sameService(prev, svc) {
			s.Sorted[i] = prev
		}
	}
	if old != nil && slices.Equal(old.Sorted, s.Sorted) {
		return old
	}
	for _, svc := range s.Sorted {
		s.byHost[svc.Hostname] = append(s.byHost[svc.Hostname], svc)
		s.NodeLocal = s.NodeLocal || svc.NodeLocal
		if d := svc.Distribution; d != "" && !slices.Contains(s.Distributions, d) {
			s.Distributions = append(s.Distributions, d)
		}
	}
	slices.Sort(s.Distributions)
	for _, same := range s.byHost {
		slices.SortStableFunc(same, preferred)
	}
	return s
}

// preferred compares services of one host: services of a cluster come first, then older services.
func preferred(a, b *model.Service) int {
	if inA, inB := a.Registry == model.RegistryKubernetes, b.Registry == model.RegistryKubernetes; inA != inB {
		if inA {
			return -1
		}
		return 1
	}
	return a.Created.Compare(b.Created)
}

// ForHost returns the service of a host as seen from a namespace: its own service, otherwise the
// preferred one that is exported to it, or nil if there is none.
func (s *Services) ForHost(host, namespace string) *model.Service {
	var first *model.Service
	for _, svc := range s.byHost[host] {
		switch {
		case !visible(exportTo(svc.ExportTo, s.export), svc.Namespace, namespace):
		case svc.Namespace == namespace:
			return svc
		case first == nil:
			first = svc
		}
	}
	return first
}

// Visible returns the services that are visible from a namespace, one for each host, sorted by
// host. The Sidecar may be nil.
func (s *Services) Visible(namespace string, sidecar *Sidecar) []*model.Service {
	out := make([]*model.Service, 0, len(s.Sorted))
	for i := 0; i < len(s.Sorted); {
		same := s.byHost[s.Sorted[i].Hostname]
		i += len(same)
		if chosen := s.chosen(same, namespace, sidecar); chosen != nil {
			out = append(out, chosen)
		}
	}
	return out
}

// chosen returns the one of several services of a host that workloads reach, or nil if none is
// visible to them.
func (s *Services) chosen(same []*model.Service, namespace string, sidecar *Sidecar) *model.Service {
	var chosen *model.Service
	for _, svc := range same {
		if !sidecar.Imports(svc.Namespace, svc.Hostname) || !visible(exportTo(svc.ExportTo, s.export), svc.Namespace, namespace) {
			continue
		}
		if chosen == nil || svc.Namespace == namespace {
			chosen = svc
		}
	}
	return chosen
}

func sameService(a, b *model.Service) bool {
	return a.ServiceKey == b.ServiceKey && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Ports, b.Ports) && a.Resolution == b.Resolution &&
		a.Passthrough == b.Passthrough && a.Headless == b.Headless && slices.Equal(a.Addresses, b.Addresses) &&
		maps.EqualFunc(a.ClusterAddresses, b.ClusterAddresses, slices.Equal) && maps.EqualFunc(a.ExternalAddresses, b.ExternalAddresses, slices.Equal) &&
		maps.EqualFunc(a.ExternalPorts, b.ExternalPorts, maps.Equal) && a.AwaitsAddress == b.AwaitsAddress && a.External == b.External && a.Registry == b.Registry &&
		slices.Equal(a.SubjectAltNames, b.SubjectAltNames) && slices.Equal(a.ServiceAccounts, b.ServiceAccounts) &&
		slices.Equal(a.ExportTo, b.ExportTo) && a.NodeLocal == b.NodeLocal && a.Distribution == b.Distribution &&
		slices.Equal(a.Allocated, b.Allocated) && a.Created.Equal(b.Created) && a.Source == b.Source &&
		slices.Equal(a.EndpointsFrom, b.EndpointsFrom)
}
