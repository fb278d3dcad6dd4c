// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"net/netip"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// entry contains the relevant fields of a WorkloadEntry.
type entry struct {
	key              model.Key
	account, address string
	// verdict is the newest report for the entry; nil if there is none.
	verdict *report
	// reported is the health in its status; nil for none. deaf is true if the status must be ignored.
	reported *reported
	deaf     bool
}

// place is an address of a service account in a namespace.
type place struct{ namespace, account, address string }

// index finds the entries of a proxy.
type index struct {
	byKey   map[model.Key]*entry
	byPlace map[place][]*entry
}

func newIndex(objects []*model.Config) index {
	x := index{byKey: make(map[model.Key]*entry, len(objects)), byPlace: make(map[place][]*entry, len(objects))}
	for _, c := range objects {
		if c == nil {
			continue
		}
		spec, ok := c.Spec.(*networkingv1alpha3.WorkloadEntry)
		if !ok || spec == nil {
			continue
		}
		e := &entry{key: c.Key, account: spec.GetServiceAccount(), address: spec.GetAddress(), reported: reportIn(c), deaf: isDeaf(c)}
		x.byKey[c.Key] = e
		if address, ok := canonical(spec.GetAddress()); ok {
			at := place{c.Namespace, e.account, address}
			x.byPlace[at] = append(x.byPlace[at], e)
		}
	}
	return x
}

// canonical returns the canonical form of an IP address, and false for other text.
func canonical(address string) (string, bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "", false
	}
	return ip.Unmap().String(), true
}

// of returns the entries whose health a proxy may report: its registered entry; or the one that it
// names; or those that have one of its addresses. All have its namespace and service account.
func (x index) of(proxy *model.Proxy) []*entry {
	for _, name := range RegisteredNames(proxy) {
		if found := x.named(proxy, name); len(found) > 0 {
			return found
		}
	}
	if proxy.WorkloadEntry != "" {
		return x.named(proxy, proxy.WorkloadEntry)
	}
	var out []*entry
	for _, ip := range proxy.IPs {
		address, ok := canonical(ip)
		if !ok {
			continue
		}
		for _, e := range x.byPlace[place{proxy.Namespace, proxy.ServiceAccount, address}] {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}

// named returns the entry with a name, if the proxy may report its health.
func (x index) named(proxy *model.Proxy, name string) []*entry {
	e := x.byKey[model.Key{Kind: model.WorkloadEntry, Namespace: proxy.Namespace, Name: name}]
	if e == nil || e.account != proxy.ServiceAccount {
		return nil
	}
	return []*entry{e}
}

// concerns reports whether a proxy may report the health of an entry.
func (x index) concerns(proxy *model.Proxy, e *entry) bool { return slices.Contains(x.of(proxy), e) }
