// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"fmt"
	"net"
	"testing"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
)

// TestStale stops upstream after it has answered.
func TestStale(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fault miekg.HandlerFunc
		first time.Duration // duration of the first answer without upstream
	}{
		"silent":   {dnstest.Silent, 1800 * time.Millisecond},
		"SERVFAIL": {dnstest.Code(miekg.RcodeServerFailure), time.Second / 2},
		"REFUSED":  {dnstest.Code(miekg.RcodeRefused), time.Second / 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handler := zoneOf(t, outsideName+" 300 IN A 192.0.2.1", "empty.example.org. 5 IN MX 1 mx.example.org.")
			u := upstream(t, handler)
			s := start(t, config(t, u.Address()), hosts())
			ask := func(name string, size int) *miekg.Msg { return exchange(t, s, "udp", request(name, miekg.TypeA, size)) }
			names := map[string]int{outsideName: miekg.RcodeSuccess, "empty.example.org.": miekg.RcodeSuccess, "no.example.org.": miekg.RcodeNameError}
			for name := range names {
				ask(name, 0)
			}
			u.Handle(test.fault)
			for name, rcode := range names {
				begin := time.Now()
				r := ask(name, 0)
				if r.Rcode != rcode || (len(r.Answer) == 1) != (name == outsideName) || r.IsEdns0() != nil {
					t.Errorf("%s: got %v", name, r)
				}
				if len(r.Answer) > 0 && r.Answer[0].Header().Ttl != staleTTL {
					t.Errorf("its TTL is %d", r.Answer[0].Header().Ttl)
				}
				if took := time.Since(begin); took > test.first+30*time.Second {
					t.Errorf("%s took %s", name, took)
				}
			}
			if r := ask("never.example.org.", 0); r.Rcode == miekg.RcodeSuccess || r.Rcode == miekg.RcodeNameError {
				t.Errorf("a name without an earlier answer: %v", r)
			}
			if got := count(t, s, "outrigger_agent_dns_stale_answers_total"); got != 3 {
				t.Errorf("%v stale answers, want 3", got)
			}
			// Once upstream is known to be dead, requests do not wait, and EDNS contains the
			// reason.
			begin := time.Now()
			r := ask("WWW.example.org.", 1232)
			opt := r.IsEdns0()
			if len(r.Answer) != 1 || r.Answer[0].Header().Name != "WWW.example.org." || opt == nil || len(opt.Option) != 1 ||
				opt.Option[0].(*miekg.EDNS0_EDE).InfoCode != miekg.ExtendedErrorCodeStaleAnswer {
				t.Errorf("got %v", r)
			}
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			u.Handle(zoneOf(t, outsideName+" 300 IN A 192.0.2.77"))
			await(t, "upstream's new answer", func() bool {
				r := ask(outsideName, 0)
				return len(r.Answer) == 1 && r.Answer[0].(*miekg.A).A.Equal(net.IPv4(192, 0, 2, 77))
			})
		})
	}
}

// TestFreshIsNotCached changes upstream's data: the next answer contains the change.
func TestFreshIsNotCached(t *testing.T) {
	t.Parallel()
	u := upstream(t, good(t))
	s := start(t, config(t, u.Address()), nil)
	exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0))
	u.Handle(dnstest.Code(miekg.RcodeNameError))
	if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); r.Rcode != miekg.RcodeNameError {
		t.Errorf("got %v", r)
	}
}

func TestNoStale(t *testing.T) {
	t.Parallel()
	u := upstream(t, good(t))
	cfg := config(t, u.Address())
	cfg.MaxStale = -1
	s := start(t, cfg, nil)
	exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0))
	u.Handle(dnstest.Code(miekg.RcodeServerFailure))
	if r := exchange(t, s, "udp", request(outsideName, miekg.TypeA, 0)); r.Rcode != miekg.RcodeServerFailure {
		t.Errorf("got %v", r)
	}
}

func TestStaleBounds(t *testing.T) {
	t.Parallel()
	const size = 1000
	s := newStaleAnswers(time.Hour)
	now := time.Now()
	key := func(i int) staleKey { return staleKey{name: fmt.Sprintf("%010d", i), qtype: 1} }
	for i := range 5000 {
		s.put(key(i), make([]byte, size), now)
		s.get(key(0), now) // marks the first one as used
	}
	if n := len(s.byKey); s.bytes > maxStaleBytes || n != s.order.Len() || n < maxStaleBytes/(size+10+staleOverhead)-1 {
		t.Errorf("%d answers of %d octets", n, s.bytes)
	}
	if s.get(key(0), now) == nil || s.get(key(4999), now) == nil || s.get(key(1), now) != nil {
		t.Error("the evicted answer is not the least recently used one")
	}
	s.put(key(4999), []byte{1}, now)
	if got := s.get(key(4999), now); len(got) != 1 {
		t.Errorf("got %d octets", len(got))
	}
	before := s.bytes
	if s.get(key(4999), now.Add(time.Hour+1)) != nil || s.bytes >= before || s.get(key(4999), now) != nil {
		t.Error("an answer that is too old was not removed")
	}
	s.put(key(4999), make([]byte, maxStaleAnswer+1), now)
	if s.get(key(4999), now) != nil {
		t.Error("an answer that is too large was kept")
	}
}

// TestFlightsAreBounded queries many names whose last answer is returned at once, while upstream is
// queried in the background and does not respond.
func TestFlightsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := config(t, upstream(t, dnstest.Silent).Address())
	cfg.Upstream.Timeout = time.Minute
	s := start(t, cfg, nil)
	s.flights.mu.Lock()
	s.flights.deadUntil = time.Now().Add(time.Minute)
	s.flights.mu.Unlock()
	const names = maxFlights + 30
	for i := range names {
		m := request(fmt.Sprintf("n%d.example.org.", i), miekg.TypeA, 0)
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		q := new(query)
		if code := q.parse(b, false); code != fine {
			t.Fatal(code)
		}
		last, err := new(miekg.Msg).SetReply(m).Pack()
		if err != nil {
			t.Fatal(err)
		}
		s.stale.put(newForward(q, false, false).staleKey(), last, time.Now())
		if r := exchange(t, s, "udp", m); r.Rcode != miekg.RcodeSuccess {
			t.Fatalf("got %v", r)
		}
	}
	s.flights.mu.Lock()
	n := len(s.flights.byKey)
	s.flights.mu.Unlock()
	if refused := count(t, s, "outrigger_agent_dns_refused_total"); n != maxFlights || refused != names-maxFlights {
		t.Errorf("%d concurrent queries to upstream, and %v requests refused", n, refused)
	}
}
