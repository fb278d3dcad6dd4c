// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// slots is how many addresses there are to give: 254 in each of the 256 networks
// of 240.240.0.0/16, rounded down to a prime so that every step visits all.
const slots = 65011

// allocate assigns a virtual address to each service of a ServiceEntry that has
// none and whose name stands for one service. The address is a function of the
// name and of the older services alone: it is the same after a restart and in
// another replica, and a service that comes later does not change it.
func (b *builder) allocate() {
	var wanting []*model.Service
	for _, s := range b.out.Sorted {
		if s.Registry == model.RegistryExternal && len(s.Addresses) == 0 && !s.Passthrough && s.Hostname != "" && !strings.HasPrefix(s.Hostname, "*") {
			wanting = append(wanting, s)
		}
	}
	slices.SortStableFunc(wanting, func(a, b *model.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), a.Compare(b.ServiceKey))
	})
	taken := make(map[uint32]bool, len(wanting))
	for _, s := range wanting {
		if len(taken) == slots {
			p := model.Problem{Object: s.Source, Warning: true}
			p.Reason = "no virtual address is left for " + s.Hostname + " and those that are younger: write one into spec.addresses"
			b.out.shape.problems = append(b.out.shape.problems, p)
			return
		}
		s.Allocated = slotAddresses(freeSlot(s.ServiceKey, taken))
	}
}

// freeSlot takes the first free slot in the order that belongs to a name.
func freeSlot(key model.ServiceKey, taken map[uint32]bool) uint32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.Namespace + "/" + key.Hostname)) // a hash takes everything
	sum := h.Sum64()
	slot, step := uint32(sum%slots), uint32(1+sum/slots%(slots-1))
	for taken[slot] {
		slot = (slot + step) % slots
	}
	taken[slot] = true
	return slot
}

// slotAddresses returns the addresses of a slot: 240.240.a.b, where b is neither 0
// nor 255, and the same in 2001:2::f0f0:0/112, a range for tests (RFC 5180).
func slotAddresses(slot uint32) []string {
	a, b := byte(slot/254), byte(slot%254+1)
	return []string{
		netip.AddrFrom4([4]byte{240, 240, a, b}).String(),
		netip.AddrFrom16([16]byte{0x20, 0x01, 0, 0x02, 12: 0xf0, 13: 0xf0, 14: a, 15: b}).String(),
	}
}
