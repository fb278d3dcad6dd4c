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

// host is the answer for one host of the name table. All its names share it.
type host struct {
	// v4 and v6 are its concatenated addresses.
	v4, v6 []byte
	// canonical is its full name in wire format, without the byte of the root.
	canonical []byte
}

// table is a name table prepared for lookups. Keys are names in wire format, in lower case, without
// the byte of the root: any suffix of such a name that begins with a label is a valid key, too.
type table struct {
	names map[string]*host
	// wild maps the rest of wildcard names to hosts.
	wild map[string]*host
	// search are the search domains that resolvers append to names.
	search []string
}

// zone determines the names of a host.
type zone struct {
	namespace string // of the proxy
	domain    string // of the cluster, without the namespace: svc.cluster.local
	search    []string
}

// newZone removes the namespace from the proxy's domain and normalizes the search domains for
// comparison.
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

// build builds a table. It also returns the number of hosts without a usable name or address. It
// processes hosts in order, so that the same table always results in the same answers: a full name
// takes precedence over short forms of other hosts, and the first of two equal names wins.
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

// newHost returns nil if the name or all addresses are invalid.
func newHost(name string, ips []string) *host {
	wire, ok := wireName(name)
	if !ok || wire == "\x01*" { // a wildcard alone would match every name
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

// shortForms returns the short names of a service in the proxy's own cluster: service.namespace,
// service.namespace.svc and, in its own namespace, service. In the domain of another cluster, the
// same short name may refer to another service.
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

// wireName returns a name in the format of the table's keys.
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

// find looks up a name. For an alias, which is a name of the table followed by a search domain, it
// also returns the name that it stands for.
//
// A resolver appends its search domains before it queries a name as written. Answering the alias
// saves it the remaining search domains, and upstream the queries. An exact match takes precedence,
// then an alias, then the longest wildcard.
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

// cut returns the offset of a domain at the end of the name, or 0 if the name does not end with it.
// A label whose bytes only look like the domain is harmless: the preceding part then ends within a
// label, and no name in the table does.
func (q *query) cut(domain string) int {
	at := q.length - len(domain)
	if at <= 0 || string(q.wire[at:q.length]) != domain {
		return 0
	}
	return at
}
