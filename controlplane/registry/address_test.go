// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package registry

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// entriesFrom returns ServiceEntry objects without addresses, each newer than the previous one.
func entriesFrom(from, to int) (out []*model.Config) {
	for i := from; i < to; i++ {
		out = append(out, &model.Config{
			Key: model.Key{Kind: model.ServiceEntry, Namespace: "default", Name: fmt.Sprintf("e%07d", i)}, Created: time.Unix(int64(i), 0),
			Spec: &networkingv1alpha3.ServiceEntry{Hosts: []string{fmt.Sprintf("host-%d.example.com", i)}, Resolution: networkingv1alpha3.ServiceEntry_DNS},
		})
	}
	return out
}

func allocated(s *Services) map[model.ServiceKey][]string {
	out := map[model.ServiceKey][]string{}
	for _, svc := range s.Sorted {
		if len(svc.Allocated) > 0 {
			out[svc.ServiceKey] = svc.Allocated
		}
	}
	return out
}

// TestSlotsAreAddresses checks that the addresses of all slots are different host addresses of the
// ranges.
func TestSlotsAreAddresses(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	four, six := netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")
	for slot := range uint32(slots) {
		for i, text := range slotAddresses(slot) {
			ip, err := netip.ParseAddr(text)
			if err != nil || seen[text] || !four.Contains(ip) && !six.Contains(ip) || ip.Is4() != (i == 0) {
				t.Fatalf("slot %d: got %q, error %v", slot, text, err)
			}
			if last := ip.As16()[15]; last == 0 || last == 255 {
				t.Fatalf("slot %d: %s is a network or broadcast address", slot, text)
			}
			seen[text] = true
		}
	}
}

// TestVirtualAddressesStay checks that new services do not change existing addresses, and that
// another process allocates the same addresses.
func TestVirtualAddressesStay(t *testing.T) {
	t.Parallel()
	const first, second = 8_000, 16_000
	before, _ := build(entriesFrom(0, first), nil, nil)
	after, _ := build(entriesFrom(0, second), nil, nil)
	many := allocated(after)
	if len(allocated(before)) != first || len(many) != second {
		t.Fatalf("got %d and %d addresses, want %d and %d", len(allocated(before)), len(many), first, second)
	}
	for key, ips := range allocated(before) {
		if !slices.Equal(many[key], ips) {
			t.Errorf("addresses of %v: got %v before and %v now", key, ips, many[key])
		}
	}
	distinct := map[string]bool{}
	for _, ips := range many {
		distinct[ips[0]], distinct[ips[1]] = true, true
	}
	if len(distinct) != 2*second {
		t.Errorf("%d services have %d different addresses, want two each", second, len(distinct))
	}
}

// TestVirtualAddressesRunOut checks that running out of addresses is reported as a problem, and
// that no service loses its address.
func TestVirtualAddressesRunOut(t *testing.T) {
	t.Parallel()
	s, problems := build(entriesFrom(0, slots+3), nil, nil)
	if n := len(allocated(s)); n != slots {
		t.Errorf("%d addresses, want %d", n, slots)
	}
	if len(problems) != 1 || !problems[0].Warning || problems[0].Object.Name != fmt.Sprintf("e%07d", slots) {
		t.Errorf("problems: got %v, want a warning about the entry without addresses", problems)
	}
}

func TestNoVirtualAddress(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{
		"an address of its own": `hosts: "a.example" addresses: "10.0.0.1" resolution: DNS`,
		"a wildcard":            `hosts: "*.example" resolution: STATIC`,
	} {
		s, _ := build([]*model.Config{object(t, model.ServiceEntry, "default/a", spec)}, nil, nil)
		if got := allocated(s); len(s.Sorted) != 1 || len(got) != 0 {
			t.Errorf("%s: got addresses %v, want none", name, got)
		}
	}
}
