// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// EndpointSet is the set of endpoints of one service, in a fixed order.
type EndpointSet struct {
	List []*model.Endpoint
	// Networks is true if at least one endpoint names its network.
	Networks bool
	// Unexported is true if at least one endpoint is for clients of its own cluster only.
	Unexported bool
	// from is the slice that the registry returned. The same slice yields the same set.
	from []*model.Endpoint
	// ports groups List by service port; nil if all endpoints have the same port.
	ports map[uint32][]*model.Endpoint
}

// OfPort returns the endpoints of a service port, in the order of List.
func (s *EndpointSet) OfPort(port uint32) []*model.Endpoint {
	switch {
	case s == nil:
		return nil
	case s.ports != nil:
		return s.ports[port]
	case len(s.List) > 0 && s.List[0].ServicePort == port:
		return s.List
	}
	return nil
}

// byPort groups endpoints by service port. It returns nil if all have the same port.
func byPort(list []*model.Endpoint) map[uint32][]*model.Endpoint {
	if !slices.ContainsFunc(list, func(e *model.Endpoint) bool { return e.ServicePort != list[0].ServicePort }) {
		return nil
	}
	ports := map[uint32][]*model.Endpoint{}
	for _, ep := range list {
		ports[ep.ServicePort] = append(ports[ep.ServicePort], ep)
	}
	return ports
}

// Endpoints is an index of endpoints: either of all services whose endpoints are sent, or of all
// services whose endpoints Envoy resolves.
type Endpoints struct {
	sets map[model.ServiceKey]*EndpointSet
}

// Of returns the endpoints of a service, or nil if there are none.
func (e *Endpoints) Of(key model.ServiceKey) *EndpointSet { return e.sets[key] }

func newEndpoints(old *Endpoints, services *Services, all map[model.ServiceKey][]*model.Endpoint, byName bool) *Endpoints {
	e := &Endpoints{sets: make(map[model.ServiceKey]*EndpointSet)}
	if old == nil {
		old = &Endpoints{}
	}
	same := true
	for _, svc := range services.Sorted {
		if svc.Resolution.ByName() != byName {
			continue
		}
		set := newSet(old.sets[svc.ServiceKey], all[svc.ServiceKey])
		if set == nil {
			continue
		}
		same = same && set == old.sets[svc.ServiceKey]
		e.sets[svc.ServiceKey] = set
	}
	if same && old.sets != nil && len(old.sets) == len(e.sets) {
		return old
	}
	return e
}

// replace returns an index with the new endpoints of some services, which must belong to the index.
// It returns e if the endpoints did not change.
func (e *Endpoints) replace(keys []model.ServiceKey, all map[model.ServiceKey][]*model.Endpoint) *Endpoints {
	next := e
	for _, key := range keys {
		prev := e.sets[key]
		set := newSet(prev, all[key])
		if set == prev {
			continue
		}
		if next == e {
			next = &Endpoints{sets: maps.Clone(e.sets)}
		}
		if set == nil {
			delete(next.sets, key)
		} else {
			next.sets[key] = set
		}
	}
	return next
}

// newSet returns the set of the endpoints that receive requests, or nil if there are none. It
// returns prev if the endpoints did not change.
func newSet(prev *EndpointSet, from []*model.Endpoint) *EndpointSet {
	if prev != nil && len(from) > 0 && len(from) == len(prev.from) && &from[0] == &prev.from[0] {
		return prev
	}
	list := inService(from)
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, compareEndpoints)
	if prev != nil && slices.EqualFunc(prev.List, list, sameEndpoint) {
		return prev
	}
	networks := slices.ContainsFunc(list, func(e *model.Endpoint) bool { return e.Network != "" })
	unexported := slices.ContainsFunc(list, func(e *model.Endpoint) bool { return e.Unexported })
	return &EndpointSet{List: list, Networks: networks, Unexported: unexported, from: from, ports: byPort(list)}
}

// inService returns a copy of a list without the unhealthy endpoints.
func inService(list []*model.Endpoint) []*model.Endpoint {
	return slices.DeleteFunc(slices.Clone(list), func(e *model.Endpoint) bool { return e.Unhealthy })
}

// Account is the identity of a workload without its trust domain.
type Account struct {
	Namespace      string
	ServiceAccount string
}

// AccountSet is the set of identities behind one service, sorted, without duplicates.
type AccountSet struct {
	List []Account
	// Entries are WorkloadEntry objects that define identities: for each identity without another
	// origin, the first object that has it.
	Entries []model.Key
}

// Accounts is the index of the identities of all services. It includes unhealthy endpoints:
// clusters list the identities and must not change with the health of endpoints. A service of a
// cluster that lost its last endpoint keeps its previous identities. It receives no requests in the
// meantime, and proxies need no new cluster when it is scaled up again.
type Accounts struct {
	sets map[model.ServiceKey]*AccountSet
}

// Of returns the identities of a service, or nil if none are known.
func (a *Accounts) Of(key model.ServiceKey) *AccountSet { return a.sets[key] }

func newAccounts(old *Accounts, services *Services, all map[model.ServiceKey][]*model.Endpoint) *Accounts {
	a := &Accounts{sets: make(map[model.ServiceKey]*AccountSet)}
	if old == nil {
		old = &Accounts{}
	}
	same := true
	for _, svc := range services.Sorted {
		prev := old.sets[svc.ServiceKey]
		set := newAccountSet(prev, svc, all[svc.ServiceKey])
		if set == nil {
			continue
		}
		same = same && set == prev
		a.sets[svc.ServiceKey] = set
	}
	if same && old.sets != nil && len(old.sets) == len(a.sets) {
		return old
	}
	return a
}

// replace returns an index with the identities for the new endpoints of some services. It returns a
// if they did not change.
func (a *Accounts) replace(services []*model.Service, all map[model.ServiceKey][]*model.Endpoint) *Accounts {
	next := a
	for _, svc := range services {
		prev := a.sets[svc.ServiceKey]
		set := newAccountSet(prev, svc, all[svc.ServiceKey])
		if set == prev {
			continue
		}
		if next == a {
			next = &Accounts{sets: maps.Clone(a.sets)}
		}
		if set == nil {
			delete(next.sets, svc.ServiceKey)
		} else {
			next.sets[svc.ServiceKey] = set
		}
	}
	return next
}

// newAccountSet returns the identities behind a service, or nil if none are known. It returns prev
// if they did not change.
func newAccountSet(prev *AccountSet, svc *model.Service, endpoints []*model.Endpoint) *AccountSet {
	if len(endpoints) == 0 && prev != nil && svc.Registry == model.RegistryKubernetes {
		return prev
	}
	type origin struct {
		account Account
		entry   model.Key // zero if the account also has another origin
	}
	var origins []origin
	for _, name := range svc.ServiceAccounts {
		origins = append(origins, origin{account: Account{Namespace: svc.Namespace, ServiceAccount: name}})
	}
	for _, ep := range endpoints {
		if ep.ServiceAccount != "" {
			origins = append(origins, origin{Account{Namespace: ep.Namespace, ServiceAccount: ep.ServiceAccount}, ep.EntryKey()})
		}
	}
	if len(origins) == 0 {
		return nil
	}
	slices.SortFunc(origins, func(x, y origin) int {
		return cmp.Or(
			cmp.Compare(x.account.Namespace, y.account.Namespace), cmp.Compare(x.account.ServiceAccount, y.account.ServiceAccount),
			cmp.Compare(x.entry.Name, y.entry.Name),
		)
	})
	origins = slices.CompactFunc(origins, func(x, y origin) bool { return x.account == y.account })
	set := &AccountSet{}
	for _, o := range origins {
		set.List = append(set.List, o.account)
		if o.entry.Name != "" {
			set.Entries = append(set.Entries, o.entry)
		}
	}
	if prev != nil && slices.Equal(prev.List, set.List) && slices.Equal(prev.Entries, set.Entries) {
		return prev
	}
	return set
}

// compareEndpoints is a total order over all fields of endpoints except labels.
func compareEndpoints(a, b *model.Endpoint) int {
	return cmp.Or(
		cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Locality, b.Locality),
		cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload),
		cmp.Compare(a.ServiceAccount, b.ServiceAccount), cmp.Compare(a.Weight, b.Weight),
		cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Cluster, b.Cluster),
		cmp.Compare(a.Network, b.Network), cmp.Compare(a.Node, b.Node),
	)
}

func sameEndpoint(a, b *model.Endpoint) bool {
	return compareEndpoints(a, b) == 0 && a.Entry == b.Entry && a.MutualTLS == b.MutualTLS && a.Draining == b.Draining && a.Unexported == b.Unexported && maps.Equal(a.Labels, b.Labels)
}
