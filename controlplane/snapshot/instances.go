// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"hash/maphash"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Instance is one port of a service that a workload serves.
type Instance struct {
	Service  *model.Service
	Endpoint *model.Endpoint
}

// instanceShards is the number of shards of the index. A change copies only the shards that it
// touches.
const instanceShards = 256

// Instances is the index of all endpoints by address. It includes endpoints that receive no
// requests, because a workload listens before it is ready.
type Instances struct {
	shards [instanceShards]map[string][]Instance
}

// instanceSeed determines the shard of an address. It is constant for the lifetime of the process
// and does not affect the content.
var instanceSeed = maphash.MakeSeed()

func shardOf(address string) int { return int(maphash.String(instanceSeed, address) % instanceShards) }

// At returns the instances of the workload with these addresses, sorted by service, then by service
// port.
func (n *Instances) At(addresses []string) []Instance {
	var out []Instance
	for _, address := range addresses {
		out = append(out, n.shards[shardOf(address)][address]...)
	}
	slices.SortStableFunc(out, func(a, b Instance) int {
		if c := a.Service.Compare(b.Service.ServiceKey); c != 0 {
			return c
		}
		return int(a.Endpoint.ServicePort) - int(b.Endpoint.ServicePort)
	})
	return out
}

// newInstances builds a new index.
func newInstances(services []*model.Service, all map[model.ServiceKey][]*model.Endpoint) *Instances {
	n := &Instances{}
	for _, svc := range services {
		for _, ep := range all[svc.ServiceKey] {
			n.add(Instance{Service: svc, Endpoint: ep})
		}
	}
	return n
}

// add adds an instance to a list that is not shared with another index.
func (n *Instances) add(i Instance) {
	at := shardOf(i.Endpoint.Address)
	if n.shards[at] == nil {
		n.shards[at] = make(map[string][]Instance)
	}
	n.shards[at][i.Endpoint.Address] = append(n.shards[at][i.Endpoint.Address], i)
}

// replace returns an index with the new endpoints of some services.
func (n *Instances) replace(services []*model.Service, before, after map[model.ServiceKey][]*model.Endpoint) *Instances {
	next := &Instances{shards: n.shards}
	changed := make(map[model.ServiceKey]bool, len(services))
	for _, svc := range services {
		changed[svc.ServiceKey] = true
	}
	own, copied := map[int]bool{}, map[string]bool{}
	// touch copies the list of an address into the new index, without the changed services.
	touch := func(address string) {
		if copied[address] {
			return
		}
		copied[address] = true
		at := shardOf(address)
		if !own[at] {
			own[at] = true
			next.shards[at] = maps.Clone(n.shards[at])
		}
		left := slices.DeleteFunc(slices.Clone(next.shards[at][address]), func(i Instance) bool { return changed[i.Service.ServiceKey] })
		if len(left) == 0 {
			delete(next.shards[at], address)
		} else {
			next.shards[at][address] = left
		}
	}
	for _, svc := range services {
		for _, ep := range before[svc.ServiceKey] {
			touch(ep.Address)
		}
	}
	for _, svc := range services {
		for _, ep := range after[svc.ServiceKey] {
			touch(ep.Address)
			next.add(Instance{Service: svc, Endpoint: ep})
		}
	}
	return next
}
