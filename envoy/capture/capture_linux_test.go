// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"testing"
)

func to(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// usual contains the arguments that the injected init container passes.
const usual = "-p 15001 -z 15006 -u 1337 -i * -b * -d 15090,15021,15020 --dual-stack "

// TestWhereConnectionsEnd applies settings one after the other and checks where connections end.
func TestWhereConnectionsEnd(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	out, in, query := l.out, l.in, l.query
	type want struct {
		probe
		answer string
	}
	none := []want{{out(80), "peer"}, {in(8080), "app"}, {query(application, l.resolver), "peer"}}
	for _, c := range []struct {
		name, line string
		environ    []string
		want       []want
	}{
		{"nothing", "", nil, none},
		{"usual", usual, nil, []want{
			{out(80), "outbound"},
			{probe{from: l.pod, user: application, to: to(l.outside6, 80)}, "outbound"},
			{probe{from: l.pod, user: proxy, to: to(l.outside4, 80)}, "peer"},
			{probe{from: l.pod, user: proxy, to: to(l.outside6, 80)}, "peer"},
			{probe{from: l.pod, user: application, group: proxy, to: to(l.outside4, 80)}, "peer"},
			{in(8080), "inbound"},
			{probe{from: l.peer, to: to(l.pod.IP6, 8080)}, "inbound"},
			{in(15020), "app"},
			{in(15008), "app"},
			{probe{from: l.pod, user: application, to: to(l.pod.IP4, 8080)}, "app"},
			{probe{from: l.pod, user: application, to: "127.0.0.1:8080"}, "app"},
			{probe{from: l.pod, user: application, to: "[::1]:8080"}, "app"},
			{probe{from: l.pod, user: proxy, to: to(l.pod.IP4, 8080)}, "inbound"},
			{probe{from: l.pod, user: proxy, to: to(l.pod.IP6, 8080)}, "inbound"},
			{probe{from: l.pod, user: proxy, local: "127.0.0.6:0", to: to(l.pod.IP4, 8080)}, "app"},
			{probe{from: l.pod, user: proxy, local: "[::6]:0", to: to(l.pod.IP6, 8080)}, "app"},
			{query(application, l.resolver), "peer"},
		}},
		{"by environment", "", []string{"ENVOY_PORT=15001", "ISTIO_SERVICE_CIDR=10.96.0.0/16", "ISTIO_INBOUND_PORTS=80,8080", "ISTIO_OUTBOUND_PORTS=9000"}, []want{
			{out(80), "outbound"},
			{probe{from: l.pod, user: application, to: to(l.elsewhere4, 80)}, "peer"},
			{probe{from: l.pod, user: application, to: to(l.elsewhere4, 9000)}, "outbound"},
			{in(8080), "inbound"},
			{in(9000), "app"},
			{probe{from: l.peer, to: to(l.pod.IP6, 8080)}, "app"},
		}},
		{"excluded", "-i * -b * -x 10.96.0.0/16 -o 443", nil, []want{
			{out(80), "peer"},
			{probe{from: l.pod, user: application, to: to(l.elsewhere4, 80)}, "outbound"},
			{probe{from: l.pod, user: application, to: to(l.elsewhere4, 443)}, "peer"},
			{in(80), "inbound"},
		}},
		{"interface", "-i * -b * -c eth+", nil, []want{{out(80), "peer"}, {in(8080), "app"}}},
		{"virtual machine", "-i 10.77.7.0/24 -k eth0", nil, []want{{in(8080), "outbound"}, {out(80), "peer"}}},
		{"groups", usual, []string{"ISTIO_OUTBOUND_OWNER_GROUPS=2000,2001"}, []want{
			{out(80), "peer"},
			{probe{from: l.pod, user: application, group: 2000, to: to(l.outside4, 80)}, "outbound"},
			{probe{from: l.pod, user: application, group: 2001, to: to(l.outside4, 80)}, "outbound"},
		}},
		{"all but groups", usual, []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=2000"}, []want{
			{out(80), "outbound"},
			{probe{from: l.pod, user: application, group: 2000, to: to(l.outside4, 80)}, "peer"},
		}},
		{"DNS", usual + "--redirect-dns", nil, []want{
			{query(application, l.resolver), "dns"},
			{query(application, l.peer.IP6), "dns"},
			{query(application, l.other), "peer"},
			{query(proxy, l.resolver), "peer"},
			{query(proxy, l.peer.IP6), "peer"},
			// The agent's query has the same addresses and ports as the application's.
			{probe{network: "udp", from: l.pod, user: application, local: to(l.pod.IP4, 20053), to: to(l.resolver, portDNS)}, "dns"},
			{probe{network: "udp", from: l.pod, user: proxy, local: to(l.pod.IP4, 20053), to: to(l.resolver, portDNS)}, "peer"},
			{probe{network: "udp", from: l.pod, user: application, local: to(l.pod.IP4, 20053), to: to(l.resolver, portDNS)}, "dns"},
			{probe{from: l.pod, user: application, to: to(l.resolver, portDNS)}, "dns"},
			{probe{from: l.pod, user: application, to: to(l.other, portDNS)}, "outbound"},
			{probe{from: l.pod, user: proxy, to: to(l.resolver, portDNS)}, "peer"},
			{out(80), "outbound"},
		}},
		{"all DNS", usual + "--capture-all-dns", []string{"ISTIO_META_DNS_CAPTURE=true"}, []want{
			{query(application, l.other), "dns"},
			{query(proxy, l.other), "peer"},
			{probe{from: l.pod, user: application, to: to(l.other, portDNS)}, "dns"},
		}},
		{"TPROXY", usual + "-m TPROXY --drop-invalid", nil, []want{
			{out(80), "outbound"},
			{in(8080), "inbound with TPROXY"},
			{probe{from: l.peer, to: to(l.pod.IP6, 8080)}, "inbound with TPROXY"},
			{in(15020), "app"},
			{probe{from: l.pod, user: application, to: to(l.pod.IP4, 8080)}, "app"},
			{probe{from: l.pod, user: proxy, to: to(l.pod.IP4, 8080)}, "inbound"},
			{probe{from: l.pod, user: proxy, local: "127.0.0.6:0", to: to(l.pod.IP4, 8080)}, "app"},
		}},
		{"removed", "--cleanup-only", nil, none},
	} {
		// Apply the rules twice, because each run must replace existing rules.
		l.apply(t, c.line, c.environ...)
		l.apply(t, c.line, c.environ...)
		for i, w := range c.want {
			if got := l.reaches(t, w.probe); got != w.answer {
				t.Errorf("%s: connection %d: user %d, group %d from %s %s to %s %s reaches %q, want %q", c.name, i, w.user, w.group, w.from.Name, w.local, w.network, w.to, got, w.answer)
			}
		}
	}
}

// out returns a connection of the application to the outside.
func (l *lab) out(port uint16) probe {
	return probe{from: l.pod, user: application, to: to(l.outside4, port)}
}

// in returns a connection from the peer to the pod.
func (l *lab) in(port uint16) probe { return probe{from: l.peer, to: to(l.pod.IP4, port)} }

// query returns a DNS query of a user.
func (l *lab) query(user int, a netip.Addr) probe {
	return probe{network: "udp", from: l.pod, user: user, to: to(a, portDNS)}
}

// TestReplacement checks that no connection bypasses the rules while they are replaced repeatedly.
func TestReplacement(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.apply(t, usual)
	s := l.settings(t, usual+"--redirect-dns")
	replaced := make(chan error, 1)
	go func() {
		replaced <- l.pod.Do(func() error {
			for range 200 {
				if err := s.run(t.Context(), slog.New(slog.DiscardHandler), io.Discard); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	for n := 0; ; n++ {
		select {
		case err := <-replaced:
			if err != nil || n == 0 {
				t.Errorf("after %d connections: %v", n, err)
			}
			return
		default:
		}
		for _, p := range []probe{l.out(80), l.in(8080)} {
			if got := l.reaches(t, p); got == "peer" || got == "app" {
				t.Fatalf("connection %d to %s reaches %q", n, p.to, got)
			}
		}
	}
}

// TestManyRanges applies as many rules as the settings allow.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var ranges string
	for i := range maxWords {
		ranges += fmt.Sprintf("10.%d.%d.0/24,", 100+i/250, i%250)
	}
	l.apply(t, "-b 80 -i "+ranges)
	p := probe{from: l.pod, user: application, to: "10.96.0.1:80"}
	if got := l.reaches(t, p); got != "peer" {
		t.Errorf("a range that is not captured reaches %q", got)
	}
	l.apply(t, "-b 80 -i 10.96.0.0/16,"+ranges[:len(ranges)-len("10.103.249.0/24,")])
	if got := l.reaches(t, p); got != "outbound" {
		t.Errorf("a range that is captured reaches %q", got)
	}
}
