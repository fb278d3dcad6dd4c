// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

// outside is what upstream resolves, in tests that distinguish the source of an answer.
func outside(t *testing.T) miekg.HandlerFunc {
	return zoneOf(t,
		"www.example.org. 300 IN A 192.0.2.1", "api.example.com. 300 IN MX 10 mx.example.com.", "1.0.0.10.in-addr.arpa. 5 IN PTR reviews.shop.svc.cluster.local.",
		"_http._tcp.reviews.shop.svc.cluster.local. 5 IN SRV 0 100 80 reviews.shop.svc.cluster.local.", "api.example.com. 60 IN HTTPS 1 . ipv4hint=203.0.113.9")
}

const none = "nobody" // forwarded to upstream, which does not know the name

// TestAnswers queries each kind of name over both protocols.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, upstream(t, outside(t)).Address()), hosts())
	cname := func(alias, name, ip string) []string {
		return []string{alias + " CNAME " + name, name + " A " + ip}
	}
	tests := []struct {
		name, ask string
		qtype     uint16
		want      []string // nil means that the name exists without such a record
	}{
		{"full name", "reviews.shop.svc.cluster.local.", miekg.TypeA, []string{"reviews.shop.svc.cluster.local. A 10.0.0.1"}},
		{"short name of the own namespace", "reviews.", miekg.TypeA, []string{"reviews. A 10.0.0.1"}},
		{"short name of another namespace", "ratings.", miekg.TypeA, []string{none}},
		{"service and namespace", "ratings.other.", miekg.TypeA, []string{"ratings.other. A 10.0.0.2"}},
		{"service, namespace, svc", "ratings.other.svc.", miekg.TypeA, []string{"ratings.other.svc. A 10.0.0.2"}},
		{"service, namespace, svc, cluster", "ratings.other.svc.cluster.", miekg.TypeA, []string{none}},
		{"a host's full name wins over a short form", "reviews.shop.", miekg.TypeA, []string{"reviews.shop. A 198.51.100.10"}},
		{"other name of an old control plane", "old.example.", miekg.TypeA, []string{"old.example. A 10.0.0.9"}},
		{"another cluster's domain has full names only", "far.shop.svc.cluster.remote.", miekg.TypeA, []string{"far.shop.svc.cluster.remote. A 10.9.0.1"}},
		{"another cluster's service, short", "far.shop.svc.", miekg.TypeA, []string{none}},
		{"Kubernetes host without a short name", "shared.shop.svc.clusterset.local.", miekg.TypeA, []string{"shared.shop.svc.clusterset.local. A 10.9.0.2"}},
		{"headless service", "db.", miekg.TypeA, []string{"db. A 10.1.0.1", "db. A 10.1.0.2", "db. A 10.1.0.3"}},
		{"pod of a headless service", "db-0.db.shop.svc.cluster.local.", miekg.TypeA, []string{"db-0.db.shop.svc.cluster.local. A 10.1.0.1"}},
		{"pod of a headless service, short", "db-0.db.", miekg.TypeA, []string{"db-0.db. A 10.1.0.1"}},
		{"IPv6", "ratings.other.", miekg.TypeAAAA, []string{"ratings.other. AAAA fd00::2"}},
		{"IPv6 of a name with IPv4 only", "reviews.", miekg.TypeAAAA, nil},
		{"IPv4 of a name with IPv6 only", "v6only.", miekg.TypeA, nil},
		{"IPv4 in the form of IPv6", "mapped.example.", miekg.TypeA, []string{"mapped.example. A 198.51.100.6"}},
		{"any type", "ratings.other.", miekg.TypeANY, []string{"ratings.other. A 10.0.0.2", "ratings.other. AAAA fd00::2"}},
		{"capitals", "API.Example.coM.", miekg.TypeA, []string{"API.Example.coM. A 198.51.100.1"}},
		{"capitals in the table", "mixed.example.com.", miekg.TypeA, []string{"mixed.example.com. A 198.51.100.2"}},

		{"wildcard", "a.wild.example.", miekg.TypeA, []string{"a.wild.example. A 198.51.100.3"}},
		{"wildcard, two labels", "a.b.wild.example.", miekg.TypeA, []string{"a.b.wild.example. A 198.51.100.3"}},
		{"the longer wildcard wins", "a.deep.wild.example.", miekg.TypeA, []string{"a.deep.wild.example. A 198.51.100.4"}},
		{"a name wins over a wildcard", "exact.wild.example.", miekg.TypeA, []string{"exact.wild.example. A 198.51.100.5"}},
		{"below a name is the wildcard", "x.exact.wild.example.", miekg.TypeA, []string{"x.exact.wild.example. A 198.51.100.3"}},
		{"a wildcard is not its own domain", "wild.example.", miekg.TypeA, []string{none}},
		{"the end of a label is no label", "awild.example.", miekg.TypeA, []string{none}},
		{"a star alone is no name", "what.ever.", miekg.TypeA, []string{none}},

		{"first search domain", "api.example.com.shop.svc.cluster.local.", miekg.TypeA, cname("api.example.com.shop.svc.cluster.local.", "api.example.com.", "198.51.100.1")},
		{"second search domain", "api.example.com.svc.cluster.local.", miekg.TypeA, cname("api.example.com.svc.cluster.local.", "api.example.com.", "198.51.100.1")},
		{"last search domain", "api.example.com.corp.example.", miekg.TypeA, cname("api.example.com.corp.example.", "api.example.com.", "198.51.100.1")},
		{"full name and search domain", "reviews.shop.svc.cluster.local.shop.svc.cluster.local.", miekg.TypeA, cname("reviews.shop.svc.cluster.local.shop.svc.cluster.local.", "reviews.shop.svc.cluster.local.", "10.0.0.1")},
		{"short form and search domain give the full name", "ratings.other.svc.shop.svc.cluster.local.", miekg.TypeA, cname("ratings.other.svc.shop.svc.cluster.local.", "ratings.other.svc.cluster.local.", "10.0.0.2")},
		{"short form and search domain that are the full name", "reviews.shop.svc.cluster.local.", miekg.TypeA, []string{"reviews.shop.svc.cluster.local. A 10.0.0.1"}},
		{"wildcard and search domain", "a.b.wild.example.corp.example.", miekg.TypeA, cname("a.b.wild.example.corp.example.", "a.b.wild.example.", "198.51.100.3")},
		{"search domain, no such record", "api.example.com.corp.example.", miekg.TypeAAAA, nil},
		{"alias itself", "api.example.com.corp.example.", miekg.TypeCNAME, []string{"api.example.com.corp.example. CNAME api.example.com."}},
		{"a search domain alone", "corp.example.", miekg.TypeA, []string{none}},
		{"octets of a label that look like a search domain", "api.example.com.x\\004corp\\007example.", miekg.TypeA, []string{none}},
		{"the end of a label is no search domain", "api.example.comxcorp.example.", miekg.TypeA, []string{none}},

		{"host without an address", "broken.example.", miekg.TypeA, []string{none}},
		{"host with one address of two", "half.example.", miekg.TypeA, []string{"half.example. A 198.51.100.7"}},
		{"a label that is too long", strings.Repeat("a", 63) + ".example.", miekg.TypeA, []string{none}},
		{"the root", ".", miekg.TypeA, []string{none}},

		{"unknown name", "www.example.org.", miekg.TypeA, []string{"www.example.org. 300 A 192.0.2.1"}},
		{"mail of a known name", "api.example.com.", miekg.TypeMX, []string{"api.example.com. 300 MX 10 mx.example.com."}},
		{"text of a known name that upstream does not know", "reviews.shop.svc.cluster.local.", miekg.TypeTXT, nil},
		{"addresses in an HTTPS record are the mesh's", "api.example.com.", miekg.TypeHTTPS, nil},
		{"CNAME of a known name", "api.example.com.", miekg.TypeCNAME, nil},
		{"reverse", "1.0.0.10.in-addr.arpa.", miekg.TypePTR, []string{"1.0.0.10.in-addr.arpa. 5 PTR reviews.shop.svc.cluster.local."}},
		{"ports of a service", "_http._tcp.reviews.shop.svc.cluster.local.", miekg.TypeSRV, []string{"_http._tcp.reviews.shop.svc.cluster.local. 5 SRV 0 100 80 reviews.shop.svc.cluster.local."}},
	}
	for _, test := range tests {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(test.name+"/"+network, func(t *testing.T) {
				t.Parallel()
				r := exchange(t, s, network, request(test.ask, test.qtype, 1232))
				if slices.Equal(test.want, []string{none}) {
					if r.Rcode != miekg.RcodeNameError || len(r.Answer) > 0 {
						t.Errorf("upstream was not asked: %v", r)
					}
					return
				}
				if r.Rcode != miekg.RcodeSuccess || r.Truncated || !r.RecursionAvailable || r.IsEdns0() == nil {
					t.Errorf("the answer is not a whole and good one: %v", r)
				}
				if diff := cmp.Diff(slices.Sorted(slices.Values(test.want)), data(r.Answer)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				// A chain of aliases is in order, because some resolvers read it only once.
				if len(r.Answer) > 1 && strings.Contains(r.Answer[1].String(), "CNAME") {
					t.Errorf("the alias does not come first: %v", r.Answer)
				}
			})
		}
	}
}

// TestNoData checks the content of an answer without records.
func TestNoData(t *testing.T) {
	t.Parallel()
	s := start(t, config(t), hosts())
	r := exchange(t, s, "udp", request("reviews.", miekg.TypeAAAA, 0))
	if len(r.Ns) != 1 || !r.Authoritative || r.IsEdns0() != nil {
		t.Fatalf("got %v", r)
	}
	soa, ok := r.Ns[0].(*miekg.SOA)
	if !ok || soa.Hdr.Name != "reviews." || soa.Hdr.Ttl != ttl || soa.Minttl != ttl || soa.Ns != "reviews." || soa.Mbox != "hostmaster.reviews." {
		t.Errorf("got %v", r.Ns[0])
	}
}

// TestDeterministic builds the same table many times.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	z := newZone("shop.svc.cluster.local", "shop", search)
	from := hosts()
	from.Hosts["REVIEWS.shop.svc.cluster.local"] = nds.Host{IPs: []string{"10.0.0.77"}, Registry: nds.Kubernetes, Shortname: "reviews", Namespace: "shop"}
	from.Hosts["x.example"] = nds.Host{IPs: []string{"10.0.0.78"}, AltHosts: []string{"old.example"}}
	first, unusable := z.build(from)
	if unusable != 4 {
		t.Errorf("%d hosts are unusable, want 4", unusable)
	}
	for range 20 {
		again, _ := z.build(&nds.Table{Hosts: maps.Clone(from.Hosts)})
		if diff := cmp.Diff(first, again, cmp.AllowUnexported(host{}, table{})); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	}
}

// TestSpread checks the order of addresses: each must be first sometimes, and no two must always be
// adjacent.
func TestSpread(t *testing.T) {
	t.Parallel()
	s := start(t, config(t), hosts())
	orders := map[string]int{}
	for range 600 {
		r := exchange(t, s, "udp", request("db.", miekg.TypeA, 0))
		var order []string
		for _, rr := range r.Answer {
			order = append(order, rr.(*miekg.A).A.String())
		}
		orders[fmt.Sprint(order)]++
	}
	if len(orders) != 6 {
		t.Fatalf("%d orders of three addresses: %v", len(orders), orders)
	}
	for order, n := range orders {
		if n < 50 || n > 170 { // the expected value is 100, the standard deviation 9
			t.Errorf("%s came %d times of 600", order, n)
		}
	}
}

// TestTruncation queries a name with a hundred addresses.
func TestTruncation(t *testing.T) {
	t.Parallel()
	s := start(t, config(t), hosts())
	tests := []struct {
		network   string
		size      int // EDNS size; 0 means no EDNS
		limit     int
		truncated bool
	}{
		{"udp", 0, 512, true},
		{"udp", 100, 512, true}, // 512 is the minimum
		{"udp", 1232, 1232, true},
		{"udp", 4096, 4096, false},
		{"udp", 65535, 4096, false},
		{"tcp", 0, 65535, false},
		{"tcp", 512, 65535, false},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.network, test.size), func(t *testing.T) {
			t.Parallel()
			seen := map[string]bool{}
			for range 50 {
				r := exchange(t, s, test.network, request("many.example.", miekg.TypeA, test.size))
				r.Compress = true
				b, err := r.Pack()
				if err != nil || len(b) > test.limit {
					t.Fatalf("%d octets, more than %d, %v", len(b), test.limit, err)
				}
				if r.Truncated != test.truncated || (len(r.Answer) == 100) == test.truncated {
					t.Fatalf("truncated is %v with %d of 100 records", r.Truncated, len(r.Answer))
				}
				if test.truncated && test.limit-len(b) >= 16 {
					t.Errorf("%d octets of %d: another record would fit", len(b), test.limit)
				}
				if (r.IsEdns0() != nil) != (test.size > 0) {
					t.Errorf("EDNS: %v", r.IsEdns0())
				}
				for _, rr := range r.Answer {
					seen[rr.(*miekg.A).A.String()] = true
				}
			}
			if len(seen) < 95 {
				t.Errorf("of 100 addresses only %d were ever in an answer", len(seen))
			}
		})
	}
}

// TestLocalWithoutUpstream resolves names of the mesh while upstream does not respond.
func TestLocalWithoutUpstream(t *testing.T) {
	t.Parallel()
	u := upstream(t, dnstest.Silent)
	s := start(t, config(t, u.Address()), hosts())
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
	if u.Asked() != 0 {
		t.Error("upstream was asked for a name of the mesh")
	}
}

// TestUpdate changes the table of a running server.
func TestUpdate(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, upstream(t, outside(t)).Address()), nil)
	if s.Ready() || s.Table() != nil {
		t.Error("it is ready without a table")
	}
	// Before the first table, upstream answers all requests.
	if r := exchange(t, s, "udp", request("www.example.org.", miekg.TypeA, 0)); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeNameError {
		t.Errorf("got %v", r)
	}
	select {
	case <-s.Named():
		t.Error("it is named without a table")
	default:
	}
	s.Update(hosts())
	<-s.Named()
	if !s.Ready() || len(s.Table().Hosts) != len(hosts().Hosts) {
		t.Error("it is not ready with a table")
	}
	if got := count(t, s, "outrigger_agent_dns_hosts"); got != float64(len(hosts().Hosts)-4) {
		t.Errorf("%v hosts can be answered", got)
	}
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); len(r.Answer) != 1 {
		t.Errorf("got %v", r)
	}
	s.Update(&nds.Table{Hosts: map[string]nds.Host{"reviews": {IPs: []string{"10.0.0.99"}}}})
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); len(r.Answer) != 1 || !r.Answer[0].(*miekg.A).A.Equal(net.IPv4(10, 0, 0, 99)) {
		t.Errorf("got %v", r)
	}
	s.Update(nil)
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeNameError || !s.Ready() {
		t.Errorf("got %v", r)
	}
}

// TestLongAlias uses a name so long that the alias does not fit next to the question, so the client
// retries over TCP.
func TestLongAlias(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("x", 59) + "."
	name := strings.Repeat(label, 4)
	cfg := config(t, upstream(t, outside(t)).Address())
	cfg.Upstream.Search = []string{"corp.example"}
	s := start(t, cfg, &nds.Table{Hosts: map[string]nds.Host{name: {IPs: []string{"10.0.0.7"}}}})
	for _, qtype := range []uint16{miekg.TypeA, miekg.TypeCNAME} {
		ask := new(miekg.Msg).SetQuestion(name+"corp.example.", qtype)
		r := exchange(t, s, "udp", ask)
		r.Compress = true
		if b, err := r.Pack(); err != nil || !r.Truncated || len(b) > miekg.MinMsgSize {
			t.Errorf("%d octets, truncated is %v, %v", len(b), r.Truncated, err)
		}
		if r = exchange(t, s, "tcp", ask); r.Truncated || len(r.Answer) == 0 || r.Answer[0].Header().Rrtype != miekg.TypeCNAME {
			t.Errorf("over TCP: %v", r)
		}
	}
}
