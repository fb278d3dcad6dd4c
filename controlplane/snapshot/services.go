// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Services is the index of service definitions.
type Services struct {
	// Sorted are all services by host, then namespace.
	Sorted []*model.Service
	byHost map[string][]*model.Service // oldest first
}

// newServices keeps the pointer of each service that did not change, and the
// old index when none did.
func newServices(old *Services, sorted []*model.Service) *Services {
	before := make(map[model.ServiceKey]*model.Service)
	if old != nil {
		for _, s := range old.Sorted {
			before[s.ServiceKey] = s
		}
	}
	s := &Services{Sorted: slices.Clone(sorted), byHost: make(map[string][]*model.Service)}
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
	}
	for _, same := range s.byHost {
		slices.SortStableFunc(same, func(a, b *model.Service) int { return a.Created.Compare(b.Created) })
	}
	return s
}

// ForHost gives the service of a host as a namespace sees it: its own one,
// otherwise the oldest. Nil means that there is none.
func (s *Services) ForHost(host, namespace string) *model.Service {
	same := s.byHost[host]
	for _, svc := range same {
		if svc.Namespace == namespace {
			return svc
		}
	}
	if len(same) == 0 {
		return nil
	}
	return same[0]
}

// Visible gives the services that a namespace sees, one for each host, sorted
// by host. The Sidecar may be nil.
func (s *Services) Visible(namespace string, sidecar *Sidecar) []*model.Service {
	out := make([]*model.Service, 0, len(s.Sorted))
	for i := 0; i < len(s.Sorted); {
		same := s.byHost[s.Sorted[i].Hostname]
		i += len(same)
		var chosen *model.Service
		for _, svc := range same {
			if !sidecar.Imports(svc.Namespace, svc.Hostname) {
				continue
			}
			if chosen == nil || svc.Namespace == namespace {
				chosen = svc
			}
		}
		if chosen != nil {
			out = append(out, chosen)
		}
	}
	return out
}

func sameService(a, b *model.Service) bool {
	return a.ServiceKey == b.ServiceKey && slices.Equal(a.Ports, b.Ports) && a.Resolution == b.Resolution &&
		slices.Equal(a.Addresses, b.Addresses) && a.External == b.External && a.Registry == b.Registry &&
		slices.Equal(a.SubjectAltNames, b.SubjectAltNames) && a.Created.Equal(b.Created) && a.Source == b.Source
}
