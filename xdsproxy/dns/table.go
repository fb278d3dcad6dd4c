// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// host is what one host of the name table answers with. It is shared by all
// its names.
type host struct {
	// v4 and v6 are its addresses, one after the other.
	v4, v6 []byte
	// canonical is its full name, in wire form without the root's octet.
	canonical []byte
}

// table is a name table made ready for lookups. Keys are names in wire form,
// lower case, without the root's octet: the end of such a name that begins
// with a label is again a key.
type table struct {
	names map[string]*host
	// wild are the names that begin with a star, by what follows it.
	wild map[string]*host
	// search are the domains that resolvers append to names.
	search []string
}

// zone is what decides which names a host has.
type zone struct {
	namespace string // of the proxy
	domain    string // of the cluster, without the namespace: svc.cluster.local
	search    []string
}

// newZone takes the namespace off the proxy's domain, and brings the search
// domains into the form in which they are compared.
func newZone(domain, namespace string, search []string) zone {
	domain = strings.ToLower(strings.Trim(domain, "."))
	if rest, ok := strings.CutPrefix(domain, strings.ToLower(namespace)+"."); ok && namespace != "" {
		domain = rest
	}
	z := zone{namespace: namespace, domain: domain}
	for _, s := range search {
		if wire, ok := wireName(s); ok && !slices.Contains(z.search, wire) {
			z.search = append(z.search, wire)
		}
	}
	return z
}

// build makes a table. It also returns the number of hosts that have no name or
// no address that can be used. Hosts are taken in order, so that the same
// table always answers the same: a full name wins over another host's short
// forms, and of two equal names the first.
func (z zone) build(from *nds.Table) (t *table, unusable int) {
	t = &table{names: map[string]*host{}, wild: map[string]*host{}, search: z.search}
	hosts := slices.Sorted(maps.Keys(from.Hosts))
	built := make([]*host, len(hosts))
	for i, name := range hosts {
		h := newHost(name, from.Hosts[name].IPs)
		if h == nil {
			unusable++
			continue
		}
		built[i] = h
		t.add(h, string(h.canonical))
	}
	for i, name := range hosts {
		if built[i] == nil {
			continue
		}
		for _, short := range z.shortForms(name, from.Hosts[name]) {
			if wire, ok := wireName(short); ok {
				t.add(built[i], wire)
			}
		}
	}
	return t, unusable
}

func (t *table) add(h *host, wire string) {
	to := t.names
	if rest, ok := strings.CutPrefix(wire, "\x01*"); ok {
		to, wire = t.wild, rest
	}
	if to[wire] == nil {
		to[wire] = h
	}
}

// newHost returns nil when the name is none, or no address is one.
func newHost(name string, ips []string) *host {
	wire, ok := wireName(name)
	if !ok || wire == "\x01*" { // a star alone would be every name there is
		return nil
	}
	h := &host{canonical: []byte(wire)}
	all := make([]netip.Addr, 0, len(ips))
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" {
			all = append(all, ip.Unmap())
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, netip.Addr.Compare)
	for _, ip := range slices.Compact(all) {
		if ip.Is4() {
			b := ip.As4()
			h.v4 = append(h.v4, b[:]...)
		} else {
			b := ip.As16()
			h.v6 = append(h.v6, b[:]...)
		}
	}
	h.v4, h.v6 = slices.Clip(h.v4), slices.Clip(h.v6)
	return h
}

// shortForms are the names that a service of the proxy's own cluster has
// beside its full one: service.namespace, service.namespace.svc, and service
// in its own namespace. In another cluster's domain the same short form may be
// another service.
func (z zone) shortForms(name string, h nds.Host) []string {
	if h.Registry != nds.Kubernetes || h.Shortname == "" || h.Namespace == "" || z.domain == "" {
		return nil
	}
	if full := strings.ToLower(strings.TrimSuffix(name, ".")); !strings.HasSuffix(full, "."+z.domain) {
		return nil
	}
	first, _, _ := strings.Cut(z.domain, ".")
	forms := []string{h.Shortname + "." + h.Namespace, h.Shortname + "." + h.Namespace + "." + first}
	if h.Namespace == z.namespace {
		forms = append(forms, h.Shortname)
	}
	return append(forms, h.AltHosts...)
}

// wireName returns a name in the form of the table's keys.
func wireName(name string) (wire string, ok bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if len(name)+1 > maxName {
		return "", false
	}
	var b strings.Builder
	b.Grow(len(name) + 1)
	for label := range strings.SplitSeq(name, ".") {
		if len(label) == 0 || len(label) > 63 {
			return "", false
		}
		b.WriteByte(byte(len(label)))
		b.WriteString(label)
	}
	return b.String(), true
}

// find looks a name up. Of an alias, which is a name of the table with a
// search domain behind it, it also returns the name that it stands for.
//
// A resolver appends its search domains before it asks for a name as it was
// written; answering then spares it the rest of its list, and upstream the
// questions. The exact name comes first, then the alias, then names with a
// star, the longest first.
func (t *table) find(q *query) (h *host, target []byte) {
	name := q.name()
	if h = t.names[string(name)]; h != nil {
		return h, nil
	}
	for _, s := range t.search {
		if cut := q.cut(s); cut > 0 {
			if h = t.names[string(name[:cut])]; h != nil {
				return h, h.canonical
			}
		}
	}
	if len(t.wild) == 0 {
		return nil, nil
	}
	for i := 1; i < q.count; i++ {
		at := int(q.labels[i])
		if h = t.wild[string(name[at:])]; h != nil {
			return h, nil
		}
		for _, s := range t.search {
			if cut := q.cut(s); cut > at {
				if h = t.wild[string(name[at:cut])]; h != nil {
					return h, name[:cut]
				}
			}
		}
	}
	return nil, nil
}

// cut returns where a domain at the end of the name begins, 0 when the name does
// not end with it. A label whose octets only look like the domain does no harm:
// what stands before it then ends within a label, as no name of the table does.
func (q *query) cut(domain string) int {
	at := q.length - len(domain)
	if at <= 0 || string(q.wire[at:q.length]) != domain {
		return 0
	}
	return at
}
