// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// EndpointSet are the endpoints of one service, in a fixed order.
type EndpointSet struct {
	List []*model.Endpoint
}

// Endpoints is the index of the endpoints of all services of one resolution.
type Endpoints struct {
	sets map[model.ServiceKey]*EndpointSet
}

// Of gives the endpoints of a service; nil means that there are none.
func (e *Endpoints) Of(key model.ServiceKey) *EndpointSet { return e.sets[key] }

func newEndpoints(old *Endpoints, services *Services, all map[model.ServiceKey][]*model.Endpoint, resolution model.Resolution) *Endpoints {
	e := &Endpoints{sets: make(map[model.ServiceKey]*EndpointSet)}
	if old == nil {
		old = &Endpoints{}
	}
	same := true
	for _, svc := range services.Sorted {
		if svc.Resolution != resolution {
			continue
		}
		list := inService(all[svc.ServiceKey])
		if len(list) == 0 {
			continue
		}
		slices.SortStableFunc(list, compareEndpoints)
		prev := old.sets[svc.ServiceKey]
		if prev != nil && slices.EqualFunc(prev.List, list, sameEndpoint) {
			e.sets[svc.ServiceKey] = prev
			continue
		}
		same = false
		e.sets[svc.ServiceKey] = &EndpointSet{List: list}
	}
	if same && old.sets != nil && len(old.sets) == len(e.sets) {
		return old
	}
	return e
}

// inService gives a copy of a list without the endpoints that take no requests.
func inService(list []*model.Endpoint) []*model.Endpoint {
	return slices.DeleteFunc(slices.Clone(list), func(e *model.Endpoint) bool { return e.Unhealthy })
}

// Account is the identity of a workload without its trust domain.
type Account struct {
	Namespace      string
	ServiceAccount string
}

// AccountSet are the identities behind one service, sorted, without
// duplicates.
type AccountSet struct {
	List []Account
}

// Accounts is the index of the identities of all services. An endpoint that is
// out of service counts: clusters name its identity, and must not change with
// its health.
type Accounts struct {
	sets map[model.ServiceKey]*AccountSet
}

// Of gives the identities of a service; nil means that none is known.
func (a *Accounts) Of(key model.ServiceKey) *AccountSet { return a.sets[key] }

func newAccounts(old *Accounts, services *Services, all map[model.ServiceKey][]*model.Endpoint) *Accounts {
	a := &Accounts{sets: make(map[model.ServiceKey]*AccountSet)}
	if old == nil {
		old = &Accounts{}
	}
	same := true
	for _, svc := range services.Sorted {
		var list []Account
		for _, ep := range all[svc.ServiceKey] {
			if ep.ServiceAccount != "" {
				list = append(list, Account{Namespace: ep.Namespace, ServiceAccount: ep.ServiceAccount})
			}
		}
		if len(list) == 0 {
			continue
		}
		slices.SortFunc(list, func(x, y Account) int {
			return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.ServiceAccount, y.ServiceAccount))
		})
		list = slices.Compact(list)
		if prev := old.sets[svc.ServiceKey]; prev != nil && slices.Equal(prev.List, list) {
			a.sets[svc.ServiceKey] = prev
			continue
		}
		same = false
		a.sets[svc.ServiceKey] = &AccountSet{List: list}
	}
	if same && old.sets != nil && len(old.sets) == len(a.sets) {
		return old
	}
	return a
}

// compareEndpoints is a total order over what two endpoints can differ in,
// save labels.
func compareEndpoints(a, b *model.Endpoint) int {
	return cmp.Or(
		cmp.Compare(a.ServicePort, b.ServicePort), cmp.Compare(a.Locality, b.Locality),
		cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload),
		cmp.Compare(a.ServiceAccount, b.ServiceAccount), cmp.Compare(a.Weight, b.Weight),
		cmp.Compare(a.Hostname, b.Hostname),
	)
}

func sameEndpoint(a, b *model.Endpoint) bool {
	return compareEndpoints(a, b) == 0 && a.MutualTLS == b.MutualTLS && maps.Equal(a.Labels, b.Labels)
}
