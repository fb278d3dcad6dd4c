// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package autoregister

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/health"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Index finds WorkloadEntry objects by name and by address. It is safe for concurrent use.
type Index struct {
	mu        sync.RWMutex // guards the fields below
	byKey     map[model.Key]*model.Config
	byAddress map[netip.Addr]map[model.Key]*model.Config
}

// NewIndex returns an index without entries.
func NewIndex() *Index {
	return &Index{byKey: map[model.Key]*model.Config{}, byAddress: map[netip.Addr]map[model.Key]*model.Config{}}
}

// Hear processes events of the store. It ignores objects of other kinds.
func (x *Index) Hear(events []config.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range events {
		key := e.Current().Key
		if key.Kind != model.WorkloadEntry {
			continue
		}
		if before := x.byKey[key]; before != nil {
			ip := parse(entrySpec(before).GetAddress())
			if delete(x.byAddress[ip], key); len(x.byAddress[ip]) == 0 {
				delete(x.byAddress, ip)
			}
			delete(x.byKey, key)
		}
		if e.New == nil || entrySpec(e.New) == nil {
			continue
		}
		x.byKey[key] = e.New
		if ip := parse(entrySpec(e.New).GetAddress()); ip.IsValid() {
			if x.byAddress[ip] == nil {
				x.byAddress[ip] = map[model.Key]*model.Config{}
			}
			x.byAddress[ip][key] = e.New
		}
	}
}

// Labels returns the labels in the WorkloadEntry of a proxy: the entry that it names, or its
// registered entry, or else the oldest entry in its namespace that has one of its addresses and no
// other service account. It returns nil if there is none. The caller may modify the map.
func (x *Index) Labels(proxy *model.Proxy) map[string]string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	c := x.of(proxy)
	if c == nil {
		return nil
	}
	labels := maps.Clone(entrySpec(c).GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels) // labels of the object take precedence, as for endpoints
	return labels
}

// of returns the entry of a proxy. The caller holds mu.
func (x *Index) of(proxy *model.Proxy) *model.Config {
	names := health.RegisteredNames(proxy)
	if len(names) == 0 && proxy.WorkloadEntry != "" {
		names = []string{proxy.WorkloadEntry}
	}
	for _, name := range names {
		if c := x.byKey[model.Key{Kind: model.WorkloadEntry, Namespace: proxy.Namespace, Name: name}]; c != nil && fits(c, proxy) {
			return c
		}
	}
	for _, text := range proxy.IPs {
		var found *model.Config
		for _, c := range x.byAddress[parse(text)] {
			if c.Namespace == proxy.Namespace && fits(c, proxy) && (found == nil || model.Older(c, found) < 0) {
				found = c
			}
		}
		if found != nil {
			return found
		}
	}
	return nil
}

// fits reports whether an entry has no other service account than a proxy.
func fits(c *model.Config, proxy *model.Proxy) bool {
	account := entrySpec(c).GetServiceAccount()
	return account == "" || account == proxy.ServiceAccount
}

// beside returns the other entries with the address of an entry.
func (x *Index) beside(c *model.Config) []model.Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var keys []model.Key
	for key := range x.byAddress[parse(entrySpec(c).GetAddress())] {
		if key != c.Key {
			keys = append(keys, key)
		}
	}
	return keys
}

// claimant returns the oldest entry of another identity with the same address, or nil if there is
// none. An entry of the same namespace without a service account may have the same identity and is
// not returned.
func (x *Index) claimant(own *model.Config) *model.Config {
	spec := entrySpec(own)
	x.mu.RLock()
	defer x.mu.RUnlock()
	var found *model.Config
	for key, c := range x.byAddress[parse(spec.GetAddress())] {
		other := entrySpec(c)
		apart := spec.GetNetwork() != "" && other.GetNetwork() != "" && spec.GetNetwork() != other.GetNetwork()
		same := key.Namespace == own.Namespace && (other.GetServiceAccount() == "" || other.GetServiceAccount() == spec.GetServiceAccount())
		if key == own.Key || apart || same {
			continue
		}
		if found == nil || model.Older(c, found) < 0 {
			found = c
		}
	}
	return found
}
