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

// slots is the number of addresses that can be allocated: 254 in each of the 256 /24 networks of
// 240.240.0.0/16, rounded down to a prime, so that every step size visits all slots.
const slots = 65011

// allocate assigns virtual addresses to each service of a ServiceEntry that has none and whose name
// is not a wildcard. The addresses depend only on the name of the service and on older services.
// They are the same after a restart and in every replica, and later services do not change them.
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
			p.Reason = "no virtual address is left for " + s.Hostname + " and younger objects: write one into spec.addresses"
			b.out.shape.problems = append(b.out.shape.problems, p)
			return
		}
		s.Allocated = slotAddresses(freeSlot(s.ServiceKey, taken))
	}
}

// freeSlot reserves and returns the first free slot in the probe sequence of a name.
func freeSlot(key model.ServiceKey, taken map[uint32]bool) uint32 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.Namespace + "/" + key.Hostname)) // never fails
	sum := h.Sum64()
	slot, step := uint32(sum%slots), uint32(1+sum/slots%(slots-1))
	for taken[slot] {
		slot = (slot + step) % slots
	}
	taken[slot] = true
	return slot
}

// slotAddresses returns the addresses of a slot: 240.240.a.b, where b is neither 0 nor 255, and the
// corresponding address in 2001:2::f0f0:0/112, part of the range for benchmarking (RFC 5180).
func slotAddresses(slot uint32) []string {
	a, b := byte(slot/254), byte(slot%254+1)
	return []string{
		netip.AddrFrom4([4]byte{240, 240, a, b}).String(),
		netip.AddrFrom16([16]byte{0x20, 0x01, 0, 0x02, 12: 0xf0, 13: 0xf0, 14: a, 15: b}).String(),
	}
}
