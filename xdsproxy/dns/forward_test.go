// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
)

const outsideName = "www.example.org."

func good(t *testing.T) miekg.HandlerFunc { return zoneOf(t, outsideName+" 300 IN A 192.0.2.1") }

// closedAddress is an address without a server.
const closedAddress = "127.77.48.3:1"

// TestUpstreamOrder queries several servers of which some fail.
func TestUpstreamOrder(t *testing.T) {
	t.Parallel()
	servfail, refuses := dnstest.Code(miekg.RcodeServerFailure), dnstest.Code(miekg.RcodeRefused)
	other := func(t *testing.T) miekg.HandlerFunc { return zoneOf(t, outsideName+" 300 IN A 192.0.2.2") }
	tests := map[string]struct {
		handlers []func(*testing.T) miekg.HandlerFunc // nil means that there is no server
		parallel bool
		rcode    int
		want     string // the expected address
		within   time.Duration
	}{
		"the first answers":                      {handlers: []func(*testing.T) miekg.HandlerFunc{good, other}, want: "192.0.2.1", within: time.Second / 2},
		"the first is closed":                    {handlers: []func(*testing.T) miekg.HandlerFunc{nil, other}, want: "192.0.2.2", within: time.Second / 2},
		"the first cannot":                       {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(servfail), other}, want: "192.0.2.2", within: time.Second / 2},
		"the first will not":                     {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(refuses), other}, want: "192.0.2.2", within: time.Second / 2},
		"the first is silent":                    {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(dnstest.Silent), other}, want: "192.0.2.2", within: 1500 * time.Millisecond},
		"in parallel, the first is silent":       {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(dnstest.Silent), other}, parallel: true, want: "192.0.2.2", within: time.Second / 3},
		"in parallel, the first cannot":          {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(servfail), other}, parallel: true, want: "192.0.2.2", within: time.Second / 3},
		"none can":                               {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(servfail), fixed(refuses)}, rcode: miekg.RcodeRefused, within: time.Second / 2},
		"all are closed":                         {handlers: []func(*testing.T) miekg.HandlerFunc{nil, nil}, rcode: miekg.RcodeServerFailure, within: time.Second / 2},
		"all are silent":                         {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(dnstest.Silent), fixed(dnstest.Silent)}, rcode: miekg.RcodeServerFailure, within: 3 * time.Second},
		"there is none":                          {rcode: miekg.RcodeServerFailure, within: time.Second / 3},
		"one that says that the name is no name": {handlers: []func(*testing.T) miekg.HandlerFunc{fixed(dnstest.Code(miekg.RcodeNameError)), other}, rcode: miekg.RcodeNameError, within: time.Second / 2},
	}
	for name, test := range tests {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				t.Parallel()
				var servers []string
				for _, h := range test.handlers {
					address := closedAddress
					if h != nil {
						address = upstream(t, h(t)).Address()
					}
					servers = append(servers, address)
				}
				cfg := config(t, servers...)
				cfg.Upstream.Parallel = test.parallel
				s := start(t, cfg, hosts())
				begin := time.Now()
				r := exchange(t, s, network, request(outsideName, miekg.TypeA, 0))
				if took := time.Since(begin); took > test.within+30*time.Second {
					t.Errorf("it took %s, more than %s", took, test.within)
				}
				if r.Rcode != test.rcode || (len(r.Answer) > 0) != (test.want != "") {
					t.Fatalf("got %v", r)
				}
				if test.want != "" && r.Answer[0].(*miekg.A).A.String() != test.want {
					t.Errorf("got %v, want %s", r.Answer, test.want)
				}
			})
		}
	}
}

func fixed(h miekg.HandlerFunc) func(*testing.T) miekg.HandlerFunc {
	return func(*testing.T) miekg.HandlerFunc { return h }
}

// TestParallel uses a silent first server: the second one is queried at the same time.
func TestParallel(t *testing.T) {
	t.Parallel()
	cfg := config(t, upstream(t, dnstest.Silent).Address(), upstream(t, good(t)).Address())
	cfg.Upstream.Parallel, cfg.Upstream.Timeout = true, 20*time.Second
	s := start(t, cfg, nil)
	fastest := time.Hour
	for range 5 {
		begin := time.Now()
		if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); len(r.Answer) != 1 {
			t.Fatalf("got %v", r)
		}
		fastest = min(fastest, time.Since(begin))
	}
	if fastest > hedgeAfter/2 {
		t.Errorf("the fastest of 5 answers took %s", fastest)
	}
}

// TestLostDatagram drops the first datagram for each name: the query is repeated before the
// resolver gives up.
func TestLostDatagram(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	answer := good(t)
	u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		if asked.Add(1) > 1 {
			answer(w, r)
		}
	})
	s := start(t, config(t, u.Address()), nil)
	begin := time.Now()
	r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0))
	if len(r.Answer) != 1 || time.Since(begin) > 1900*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(begin), r)
	}
}

// TestUpstreamTruncates uses an upstream whose answers do not fit into a datagram.
func TestUpstreamTruncates(t *testing.T) {
	t.Parallel()
	var records []string
	for _, ip := range addresses(150) { // about 2400 bytes
		records = append(records, "big.example.org. 60 IN A "+ip)
	}
	handler := zoneOf(t, records...)
	tests := []struct {
		network   string
		size      int
		truncated bool
	}{{"udp", 0, true}, {"udp", 1232, true}, {"udp", 4096, false}, {"tcp", 0, false}, {"tcp", 1232, false}}
	s := start(t, config(t, upstream(t, handler).Address()), hosts())
	for _, test := range tests {
		t.Run(fmt.Sprint(test.network, test.size), func(t *testing.T) {
			t.Parallel()
			r := exchange(t, s, test.network, request("big.example.org.", miekg.TypeA, test.size))
			if r.Truncated != test.truncated || (len(r.Answer) == 150) == test.truncated || len(r.Answer) == 0 {
				t.Errorf("truncated is %v with %d records", r.Truncated, len(r.Answer))
			}
		})
	}
	t.Run("more than was agreed", func(t *testing.T) {
		t.Parallel()
		rude := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
			m := new(miekg.Msg).SetReply(r)
			n := 40
			if strings.HasPrefix(r.Question[0].Name, "huge.") {
				n = 200
			}
			for _, ip := range addresses(n) {
				rr, err := miekg.NewRR(r.Question[0].Name + " 60 IN A " + ip)
				if err != nil {
					t.Error(err)
				}
				m.Answer = append(m.Answer, rr)
			}
			_ = w.WriteMsg(m) // 1300 or 6500 bytes, for a client that accepts 512
		})
		s := start(t, config(t, rude.Address()), nil)
		if r := exchange(t, s, "udp", request("rude.example.org.", miekg.TypeA, 0)); !r.Truncated || r.Rcode != miekg.RcodeSuccess || len(r.Answer) == 0 {
			t.Errorf("got %v", r)
		}
		if r := exchange(t, s, "tcp", request("rude.example.org.", miekg.TypeA, 0)); r.Truncated || len(r.Answer) != 40 {
			t.Errorf("got %v", r)
		}
		for size, records := range map[int]int{0: 0, 4096: 200} { // the second client accepts it, so it is requested over TCP
			r := exchange(t, s, "udp", request("huge.example.org.", miekg.TypeA, size))
			if r.Truncated != (records == 0) || r.Rcode != miekg.RcodeSuccess || len(r.Answer) != records {
				t.Errorf("%d octets: truncated is %v with %d records", size, r.Truncated, len(r.Answer))
			}
		}
	})
}

// TestSpoofed sends invalid answers before the correct one.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	forge := func(r *miekg.Msg, change func(*miekg.Msg)) *miekg.Msg {
		m := new(miekg.Msg).SetReply(r)
		rr, err := miekg.NewRR(r.Question[0].Name + " 60 IN A 203.0.113.66")
		if err != nil {
			t.Error(err)
		}
		m.Answer = []miekg.RR{rr}
		change(m)
		return m
	}
	right := good(t)
	var ports sync.Map
	u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		ports.Store(w.RemoteAddr().String(), r.Id)
		for _, m := range []*miekg.Msg{
			forge(r, func(m *miekg.Msg) { m.Id++ }),
			forge(r, func(m *miekg.Msg) { m.Question[0].Name = "www.example.net." }),
			forge(r, func(m *miekg.Msg) { m.Question[0].Qtype = miekg.TypeAAAA }),
			forge(r, func(m *miekg.Msg) { m.Question[0].Qclass = miekg.ClassCHAOS }),
			forge(r, func(m *miekg.Msg) { m.Question = nil }),
			forge(r, func(m *miekg.Msg) { m.Response = false }),
			forge(r, func(m *miekg.Msg) { m.Opcode = miekg.OpcodeUpdate }),
		} {
			_ = w.WriteMsg(m)
		}
		_, _ = w.Write([]byte("not DNS"))
		right(w, r)
	})
	s := start(t, config(t, u.Address()), nil)
	const times = 40
	for i := range times {
		network := []string{"udp", "tcp"}[i%2]
		r := exchange(t, s, network, request(outsideName, miekg.TypeA, 0))
		if len(r.Answer) != 1 || r.Answer[0].(*miekg.A).A.String() != "192.0.2.1" {
			t.Fatalf("%s: got %v", network, r)
		}
	}
	if got := count(t, s, "outrigger_agent_dns_upstream_ignored_total"); got != 8*times {
		t.Errorf("%v messages were ignored, want %d", got, 8*times)
	}
	ids := map[uint16]bool{}
	n := 0
	ports.Range(func(_, id any) bool {
		ids[id.(uint16)] = true
		n++
		return true
	})
	if n < times-2 || len(ids) < times-2 {
		t.Errorf("%d ports and %d numbers for %d requests: they can be guessed", n, len(ids), times)
	}
}

// TestDamagedUpstream answers with truncated messages.
func TestDamagedUpstream(t *testing.T) {
	t.Parallel()
	u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		m := new(miekg.Msg).SetReply(r)
		rr, err := miekg.NewRR(r.Question[0].Name + " 60 IN A 192.0.2.1")
		if err != nil {
			t.Error(err)
		}
		m.Answer = []miekg.RR{rr, rr}
		m.Truncated = strings.HasPrefix(r.Question[0].Name, "tc.")
		b, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		if strings.HasPrefix(r.Question[0].Name, "count.") {
			b[7] = 9 // number of records
			_, _ = w.Write(b)
			return
		}
		_, _ = w.Write(b[:len(b)-3])
	})
	s := start(t, config(t, u.Address()), nil)
	if r := exchange(t, s, "udp", request("count.example.org.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("fewer records than announced: %v", r)
	}
	if r := exchange(t, s, "udp", request("x.example.org.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("got %v", r)
	}
	// A message marked as truncated is passed on as such.
	if r := exchange(t, s, "udp", request("tc.example.org.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeSuccess || !r.Truncated || len(r.Answer) != 0 {
		t.Errorf("got %v", r)
	}
}

// TestMerged sends concurrent requests for one name: upstream is queried once.
func TestMerged(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	answer := good(t)
	u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
		select {
		case <-release:
			answer(w, r)
		case <-t.Context().Done():
		}
	})
	cfg := config(t, u.Address())
	cfg.Upstream.Timeout = 30 * time.Second // prevents a second attempt
	s := start(t, cfg, nil)
	const clients = 50
	var g sync.WaitGroup
	for i := range clients {
		g.Go(func() {
			name := outsideName
			if i%2 == 1 {
				name = strings.ToUpper(name)
			}
			if r := exchange(t, s, "udp", request(name, miekg.TypeA, 0)); len(r.Answer) != 1 || r.Answer[0].Header().Name != name {
				t.Errorf("got %v", r)
			}
		})
	}
	await(t, "all requests wait", func() bool { return len(s.slots) == clients })
	close(release)
	g.Wait()
	if u.Asked() > 2 { // a second attempt is made if it takes more than a second until all are waiting
		t.Errorf("upstream was asked %d times", u.Asked())
	}
}

// TestLoop lets upstream send requests back to the server.
func TestLoop(t *testing.T) {
	t.Parallel()
	t.Run("its own address", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		cfg.Upstream.Servers = []string{cfg.Sockets[0].UDP.LocalAddr().String()}
		s := start(t, cfg, hosts())
		if len(s.upstream.Load().servers) != 0 {
			t.Errorf("servers are %v", s.upstream.Load().servers)
		}
		if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
			t.Errorf("got %v", r)
		}
	})
	t.Run("its own address behind any", func(t *testing.T) {
		t.Parallel()
		sockets, err := Listen("0.0.0.0:0", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sockets[0].Close(); err != nil {
				t.Error(err)
			}
		}()
		port := sockets[0].UDP.LocalAddr().(*net.UDPAddr).Port
		for server, ours := range map[string]bool{"127.0.0.1": true, "127.77.48.9": true, "0.0.0.0": true, "192.0.2.1": false} {
			if got := isOurs(fmt.Sprintf("%s:%d", server, port), sockets); got != ours {
				t.Errorf("%s is ours: %v, want %v", server, got, ours)
			}
			if isOurs(server+":1", sockets) {
				t.Errorf("%s is ours at another port", server)
			}
		}
	})
	for _, network := range []string{"udp", "tcp"} {
		for name, sameID := range map[string]bool{"redirected": true, "through another server": false} {
			t.Run(name+"/"+network, func(t *testing.T) {
				t.Parallel()
				var address atomic.Value
				u := upstream(t, func(w miekg.ResponseWriter, r *miekg.Msg) {
					back := r.Copy()
					if !sameID {
						back.Id = miekg.Id()
					}
					c := miekg.Client{Net: w.RemoteAddr().Network(), Timeout: 8 * time.Second}
					if answer, _, err := c.ExchangeContext(t.Context(), back, address.Load().(string)); err == nil {
						answer.Id = r.Id
						_ = w.WriteMsg(answer)
					}
				})
				s := start(t, config(t, u.Address()), hosts())
				address.Store(s.address())
				begin := time.Now()
				r := exchange(t, s, network, request(outsideName, miekg.TypeA, 4096))
				if r.Rcode != miekg.RcodeServerFailure && r.Rcode != miekg.RcodeRefused {
					t.Errorf("got %v", r)
				}
				if n := u.Asked(); n > 12 {
					t.Errorf("one request became %d", n)
				}
				if refused := count(t, s, "outrigger_agent_dns_refused_total"); sameID && (refused != 1 || time.Since(begin) > time.Second) {
					t.Errorf("%v loops were noticed in %s", refused, time.Since(begin))
				}
			})
		}
	}
}

// TestOverload sends more requests than may wait for upstream.
func TestOverload(t *testing.T) {
	t.Parallel()
	u := upstream(t, dnstest.Silent)
	cfg := config(t, u.Address())
	cfg.Upstream.Timeout = 20 * time.Second
	s := start(t, cfg, hosts())
	conn, err := net.Dial("udp", s.address())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for i := range maxForwards {
		b, err := request(fmt.Sprintf("n%d.example.org.", i), miekg.TypeA, 0).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		// Sequentially, because this does not test the socket's queue.
		await(t, "the request waits", func() bool { return len(s.slots) == i+1 })
	}
	begin := time.Now()
	if r := exchange(t, s, "udp", request("one.more.example.org.", miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("got %v", r)
	}
	if r := exchange(t, s, "udp", request("reviews.", miekg.TypeA, 0)); len(r.Answer) != 1 {
		t.Errorf("a name of the mesh: %v", r)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if got := count(t, s, "outrigger_agent_dns_refused_total"); got != 1 {
		t.Errorf("%v were refused", got)
	}
}
