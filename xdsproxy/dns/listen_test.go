// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	miekg "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

func TestPlace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		address string
		root    bool
		want    Placement
	}{
		{"", false, Placement{Address: "localhost:15053", ResolvConf: []string{"/etc/resolv.conf"}}},
		{"127.0.0.1:15053", true, Placement{Address: "127.0.0.1:15053", ResolvConf: []string{"/etc/resolv.conf"}}},
		{"127.0.0.1:53", true, Placement{Address: "127.0.0.1:53", ResolvConf: []string{"/var/lib/istio/resolv.conf", "/etc/resolv.conf"}}},
		{"127.0.0.1:53", false, Placement{Address: "localhost:15053", ResolvConf: []string{"/etc/resolv.conf"}, Moved: true}},
		{"127.0.0.1:1053", false, Placement{Address: "127.0.0.1:1053", ResolvConf: []string{"/etc/resolv.conf"}}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, Place(test.address, test.root)); diff != "" {
			t.Errorf("%q, root %v (-want +got):\n%s", test.address, test.root, diff)
		}
	}
}

func TestReadResolvConf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, path, empty := filepath.Join(dir, "missing"), filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "empty")
	text := "# comment\nnameserver 10.96.0.10\nnameserver fd00::a\nsearch shop.svc.cluster.local svc.cluster.local\noptions ndots:5\n"
	for p, text := range map[string]string{path: text, empty: ""} {
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := Upstream{Servers: []string{"10.96.0.10:53", "[fd00::a]:53"}, Search: []string{"shop.svc.cluster.local", "svc.cluster.local"}}
	for _, paths := range [][]string{{path}, {missing, path}, {path, empty}} {
		got, err := ReadResolvConf(paths...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Upstream{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if got, err := ReadResolvConf(empty, path); err != nil || len(got.Servers) != 0 {
		t.Errorf("an empty file: %v, %v", got, err)
	}
	for _, paths := range [][]string{{missing}, {dir}} {
		if _, err := ReadResolvConf(paths...); err == nil || !strings.Contains(err.Error(), paths[0]) {
			t.Errorf("%v: %v", paths, err)
		}
	}
}

func TestLocalhosts(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"":                            {"127.0.0.1"},
		"10.0.0.1:53":                 {"127.0.0.1"},
		"[fd00::1]:53":                {"::1"},
		"10.0.0.1:53 [fd00::1]:53":    {"127.0.0.1", "::1"},
		"[::ffff:10.0.0.1]:53":        {"127.0.0.1"},
		"[fe80::1%eth0]:53":           {"::1"},
		"[fd00::1]:53 [fd00::2]:53":   {"::1"},
		"dns.example:53 10.0.0.1:53":  {"127.0.0.1"},
		"10.0.0.1:53 192.168.0.1:530": {"127.0.0.1"},
	}
	for servers, want := range tests {
		if diff := cmp.Diff(want, localhosts(strings.Fields(servers))); diff != "" {
			t.Errorf("%q (-want +got):\n%s", servers, diff)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	sockets, err := Listen("localhost:0", []string{"10.0.0.1:53"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := sockets[0].UDP.LocalAddr().String()
	if sockets[0].TCP.Addr().String() != taken || !strings.HasPrefix(taken, "127.0.0.1:") || len(sockets) != 1 {
		t.Errorf("got %v", sockets)
	}
	for _, address := range []string{taken, "15053", "192.0.2.1:1", "127.77.48.1:99999"} {
		if _, err := Listen(address, nil, nil); err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := sockets[0].Close(); err != nil {
		t.Error(err)
	}
	again, err := Listen(taken, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := again[0].Close(); err != nil {
		t.Error(err)
	}
}

// TestAnyAddress queries a server that is bound to all addresses: an answer from a different source
// address would be dropped.
func TestAnyAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", "[::]:0"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			sockets, err := Listen(address, nil, nil)
			if err != nil {
				t.Skipf("this system cannot listen on %s: %v", address, err)
			}
			cfg := config(t, upstream(t, good(t)).Address())
			for _, s := range cfg.Sockets {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			cfg.Sockets = sockets
			s := start(t, cfg, hosts())
			_, port, err := net.SplitHostPort(s.address())
			if err != nil {
				t.Fatal(err)
			}
			asked := []string{"127.77.48.8"}
			if probe, err := net.Listen("tcp", "[::1]:0"); err == nil && sockets[0].UDP.LocalAddr().(*net.UDPAddr).IP.To4() == nil {
				_ = probe.Close()
				asked = append(asked, "::1")
			}
			for _, host := range asked {
				for _, name := range []string{"reviews.", outsideName} {
					r, err := miekg.Exchange(request(name, miekg.TypeA, 0), net.JoinHostPort(host, port))
					if err != nil || len(r.Answer) != 1 {
						t.Errorf("%s at %s: %v, %v", name, host, r, err)
					}
				}
			}
		})
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	fineConfig := config(t, "192.0.2.1:53", "[2001:db8::1]:53")
	fineConfig.Upstream.Search = []string{"Corp.Example.", "corp.example", "bad..one", "."}
	s, err := New(fineConfig)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.upstream.Load().servers) != 2 || len(s.zone.search) != 1 || s.zone.domain != "svc.cluster.local" {
		t.Errorf("got %v, %q, %q", s.upstream.Load().servers, s.zone.search, s.zone.domain)
	}
	tests := map[string]func(*Config){
		"no socket":        func(c *Config) { c.Sockets = nil },
		"no logger":        func(c *Config) { c.Logger = nil },
		"must be positive": func(c *Config) { c.Upstream.Timeout = -1 },
		"\"192.0.2.1\" is": func(c *Config) { c.Upstream.Servers = []string{"192.0.2.1"} },
	}
	for want, change := range tests {
		cfg := fineConfig
		cfg.Registerer = prometheus.NewRegistry()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, socket := range fineConfig.Sockets {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSocketClosedByOthers checks that Run returns an error if its sockets are closed.
func TestSocketClosedByOthers(t *testing.T) {
	t.Parallel()
	for name, closeOne := range map[string]func(Socket) error{
		"udp": func(s Socket) error { return s.UDP.Close() },
		"tcp": func(s Socket) error { return s.TCP.Close() },
	} {
		cfg := config(t)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := closeOne(cfg.Sockets[0]); err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), s.address()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestZone(t *testing.T) {
	t.Parallel()
	for in, want := range map[[2]string]string{
		{"shop.svc.cluster.local", "shop"}:  "svc.cluster.local",
		{"svc.cluster.local", "shop"}:       "svc.cluster.local",
		{"Shop.svc.Cluster.local.", "shop"}: "svc.cluster.local",
		{"shopping.svc.local", "shop"}:      "shopping.svc.local",
		{"", "shop"}:                        "",
		{".svc.cluster.local", ""}:          "svc.cluster.local",
	} {
		if got := newZone(in[0], in[1], nil).domain; got != want {
			t.Errorf("%v: got %q, want %q", in, got, want)
		}
	}
}
