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

// instanceShards is in how many parts the index is kept: a change copies those
// that it touches.
const instanceShards = 256

// Instances is the index of all endpoints by address, also of those that take
// no requests: a workload listens before it is ready.
type Instances struct {
	shards [instanceShards]map[string][]Instance
}

// instanceSeed decides the shard of an address. It is the same for the life of
// the process, and says nothing about the content.
var instanceSeed = maphash.MakeSeed()

func shardOf(address string) int { return int(maphash.String(instanceSeed, address) % instanceShards) }

// At gives what the workload with these addresses serves, by service, then by
// number of the port of the service.
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

// newInstances makes the index anew.
func newInstances(services []*model.Service, all map[model.ServiceKey][]*model.Endpoint) *Instances {
	n := &Instances{}
	for _, svc := range services {
		for _, ep := range all[svc.ServiceKey] {
			n.add(Instance{Service: svc, Endpoint: ep})
		}
	}
	return n
}

func (n *Instances) add(i Instance) {
	at := shardOf(i.Endpoint.Address)
	if n.shards[at] == nil {
		n.shards[at] = make(map[string][]Instance)
	}
	// Clipped: the backing array may be that of an older index.
	n.shards[at][i.Endpoint.Address] = append(slices.Clip(n.shards[at][i.Endpoint.Address]), i)
}

// replace gives the index with other endpoints of some services.
func (n *Instances) replace(services []*model.Service, before, after map[model.ServiceKey][]*model.Endpoint) *Instances {
	next := &Instances{shards: n.shards}
	own := map[int]bool{}
	touch := func(address string) {
		if at := shardOf(address); !own[at] {
			own[at] = true
			next.shards[at] = maps.Clone(n.shards[at])
		}
	}
	for _, svc := range services {
		for _, ep := range before[svc.ServiceKey] {
			touch(ep.Address)
			shard := next.shards[shardOf(ep.Address)]
			left := slices.DeleteFunc(slices.Clone(shard[ep.Address]), func(i Instance) bool { return i.Service.ServiceKey == svc.ServiceKey })
			if len(left) == 0 {
				delete(shard, ep.Address)
			} else {
				shard[ep.Address] = left
			}
		}
		for _, ep := range after[svc.ServiceKey] {
			touch(ep.Address)
			next.add(Instance{Service: svc, Endpoint: ep})
		}
	}
	return next
}
