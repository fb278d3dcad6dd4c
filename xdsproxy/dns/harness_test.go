// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
	"github.com/outrigger-mesh/outrigger/xdsproxy/dns/dnstest"
	"github.com/outrigger-mesh/outrigger/xdsproxy/nds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(ownnet.Tests(m)) }

const (
	listenOn   = "127.77.48.1:0"
	upstreamOn = "127.77.48.2:0"
)

var search = []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"}

// hosts is a name table with one entry of each kind.
func hosts() *nds.Table {
	service := func(short, namespace string, ips ...string) nds.Host {
		return nds.Host{IPs: ips, Registry: nds.Kubernetes, Shortname: short, Namespace: namespace}
	}
	external := func(ips ...string) nds.Host { return nds.Host{IPs: ips, Registry: "External"} }
	return &nds.Table{Hosts: map[string]nds.Host{
		"reviews.shop.svc.cluster.local":          service("reviews", "shop", "10.0.0.1"),
		"ratings.other.svc.cluster.local":         service("ratings", "other", "10.0.0.2", "fd00::2"),
		"v6only.shop.svc.cluster.local":           service("v6only", "shop", "fd00::3"),
		"db.shop.svc.cluster.local":               service("db", "shop", "10.1.0.1", "10.1.0.2", "10.1.0.3"),
		"db-0.db.shop.svc.cluster.local":          service("db-0.db", "shop", "10.1.0.1"),
		"far.shop.svc.cluster.remote":             service("far", "shop", "10.9.0.1"),
		"shared.shop.svc.clusterset.local":        {IPs: []string{"10.9.0.2"}, Registry: nds.Kubernetes},
		"legacy.shop.svc.cluster.local":           {IPs: []string{"10.0.0.9"}, Registry: nds.Kubernetes, Shortname: "legacy", Namespace: "shop", AltHosts: []string{"old.example"}},
		"api.example.com":                         external("198.51.100.1"),
		"Mixed.Example.COM.":                      external("198.51.100.2"),
		"*.wild.example":                          external("198.51.100.3"),
		"*.deep.wild.example":                     external("198.51.100.4"),
		"exact.wild.example":                      external("198.51.100.5"),
		"mapped.example":                          external("::ffff:198.51.100.6", "198.51.100.6"),
		"broken.example":                          external("10.0.0.0/8", "nonsense", "fe80::1%eth0"),
		"half.example":                            external("nonsense", "198.51.100.7"),
		strings.Repeat("a", 64) + ".example":      external("198.51.100.8"),
		"*":                                       external("198.51.100.9"),
		"reviews.shop":                            external("198.51.100.10"),
		"bad..example":                            external("198.51.100.11"),
		"many.example":                            external(addresses(100)...),
		"pair.example":                            external("198.51.100.20", "198.51.100.21"),
		"_sip._tcp.known.example":                 external("198.51.100.22"),
		"mail.example.com":                        external("198.51.100.23"),
		"very." + strings.Repeat("x.", 120) + "y": external("198.51.100.24"),
	}}
}

func addresses(n int) (ips []string) {
	for i := range n {
		ips = append(ips, net.IPv4(203, 0, 113, byte(i)).String())
	}
	return ips
}

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// config returns a configuration for tests with the given upstream.
func config(t *testing.T, servers ...string) Config {
	t.Helper()
	sockets, err := Listen(listenOn, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Sockets: sockets, Domain: "shop.svc.cluster.local", Namespace: "shop", Logger: discard(), Registerer: prometheus.NewRegistry(),
		Upstream: Upstream{Servers: servers, Search: search, Timeout: 2 * time.Second},
	}
}

// start runs a server until the end of the test.
func start(t *testing.T, cfg Config, table *nds.Table) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if table != nil {
		s.Update(table)
	}
	run(t, s.Run)
	return s
}

func run(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(2 * time.Minute):
			t.Error("the server did not stop")
		}
	})
}

// upstream runs an upstream server.
func upstream(t *testing.T, h miekg.HandlerFunc) *dnstest.Upstream {
	t.Helper()
	u, err := dnstest.ListenUpstream(upstreamOn)
	if err != nil {
		t.Fatal(err)
	}
	u.Handle(h)
	run(t, u.Run)
	return u
}

func zoneOf(t *testing.T, records ...string) miekg.HandlerFunc {
	t.Helper()
	h, err := dnstest.Zone(records...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (s *Server) address() string { return s.cfg.Sockets[0].UDP.LocalAddr().String() }

// request returns a query, with EDNS if size is not 0.
func request(name string, qtype uint16, size int) *miekg.Msg {
	m := new(miekg.Msg).SetQuestion(name, qtype)
	if size > 0 {
		m.SetEdns0(uint16(size), false)
	}
	return m
}

// exchange sends a query with miekg's client.
func exchange(t *testing.T, s *Server, network string, m *miekg.Msg) *miekg.Msg {
	t.Helper()
	c := miekg.Client{Net: network, Timeout: 8 * time.Second, UDPSize: 65535}
	r, _, err := c.ExchangeContext(t.Context(), m, s.address())
	if err != nil {
		t.Fatalf("%s %s: %v", network, m.Question[0].String(), err)
	}
	if r.Question[0] != m.Question[0] {
		t.Errorf("the question is %v, want %v", r.Question, m.Question)
	}
	return r
}

// data returns the data of the records without TTLs, sorted if there are several addresses.
func data(all []miekg.RR) (texts []string) {
	for _, rr := range all {
		texts = append(texts, strings.Join(slices.DeleteFunc(strings.Fields(rr.String()), func(f string) bool { return f == "30" || f == "IN" }), " "))
	}
	slices.Sort(texts)
	return texts
}

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not in 10 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// count returns the value of a counter, or the sum of all counters with its name.
func count(t *testing.T, s *Server, name string) (sum float64) {
	t.Helper()
	families, err := s.cfg.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
