// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestGoResolver uses the resolver of Go programs.
func TestGoResolver(t *testing.T) {
	t.Parallel()
	s := start(t, config(t, upstream(t, outside(t)).Address()), hosts())
	for _, only := range []string{"", "tcp"} {
		t.Run("network "+only, func(t *testing.T) {
			t.Parallel()
			r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, cmp.Or(only, network), s.address())
			}}
			for name, want := range map[string][]string{
				"ratings.other.svc.cluster.local.": {"10.0.0.2", "fd00::2"},
				"reviews.":                         {"10.0.0.1"},
				"api.example.com.corp.example.":    {"198.51.100.1"},
				"www.example.org.":                 {"192.0.2.1"},
				"many.example.":                    addresses(100), // too many for a datagram: it comes again over TCP
			} {
				ips, err := r.LookupNetIP(t.Context(), "ip", name)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				var got []string
				for _, ip := range ips {
					got = append(got, ip.Unmap().String())
				}
				slices.Sort(got)
				slices.Sort(want)
				if diff := gocmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			_, err := r.LookupNetIP(t.Context(), "ip4", "no.example.org.")
			if dnsError := new(net.DNSError); !errors.As(err, &dnsError) || !dnsError.IsNotFound {
				t.Errorf("a name that does not exist: %v", err)
			}
			canonical, err := r.LookupCNAME(t.Context(), "ratings.other.svc.shop.svc.cluster.local.")
			if err != nil || canonical != "ratings.other.svc.cluster.local." {
				t.Errorf("the canonical name is %q, %v", canonical, err)
			}
			if _, srv, err := r.LookupSRV(t.Context(), "http", "tcp", "reviews.shop.svc.cluster.local."); err != nil || len(srv) != 1 || srv[0].Port != 80 {
				t.Errorf("SRV: %v, %v", srv, err)
			}
			if names, err := r.LookupAddr(t.Context(), "10.0.0.1"); err != nil || !slices.Equal(names, []string{"reviews.shop.svc.cluster.local."}) {
				t.Errorf("PTR: %v, %v", names, err)
			}
		})
	}
}

// TestLibc uses the resolver of the C library, which reads /etc/resolv.conf and supports only port
// 53. A mount namespace provides both.
func TestLibc(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"unshare", "getent", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here, so the C library cannot be given another resolv.conf", program)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can bind port 53 and mount over /etc/resolv.conf: run this test as root")
	}
	cfg := config(t, upstream(t, outside(t)).Address())
	sockets, err := Listen("127.77.48.53:53", nil, nil)
	if err != nil {
		t.Skipf("port 53 cannot be bound here: %v", err)
	}
	for _, s := range cfg.Sockets {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Sockets = sockets
	start(t, cfg, hosts())
	dir := t.TempDir()
	conf, hostsFile := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts")
	for path, text := range map[string]string{
		conf:      "nameserver 127.77.48.53\nsearch " + strings.Join(search, " ") + "\noptions ndots:5\n",
		hostsFile: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	getent := func(t *testing.T, database, name string) (ips []string, canonical string, took time.Duration) {
		t.Helper()
		begin := time.Now()
		cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c",
			`mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/hosts && exec getent "$3" "$4"`, "sh", conf, hostsFile, database, name)
		out, err := cmd.Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			if strings.Contains(string(exit.Stderr), "unshare") || strings.Contains(string(exit.Stderr), "mount") {
				t.Skipf("this system has no mount namespaces for us: %s", exit.Stderr)
			}
		} else if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			ip, err := netip.ParseAddr(f[0])
			if err != nil {
				t.Fatalf("getent says %q", line)
			}
			if len(f) > 2 {
				canonical = f[2]
			}
			if text := ip.Unmap().String(); !slices.Contains(ips, text) {
				ips = append(ips, text)
			}
		}
		slices.Sort(ips)
		return ips, canonical, time.Since(begin)
	}
	tests := []struct {
		database, name, canonical string
		ips                       []string
	}{
		{"ahosts", "reviews", "reviews.shop.svc.cluster.local", []string{"10.0.0.1"}},
		{"ahostsv4", "reviews", "reviews.shop.svc.cluster.local", []string{"10.0.0.1"}},
		{"ahosts", "ratings.other", "ratings.other.svc.cluster.local", []string{"10.0.0.2", "fd00::2"}},
		{"ahostsv4", "ratings.other.svc", "ratings.other.svc.cluster.local", []string{"10.0.0.2"}},
		{"ahosts", "v6only", "v6only.shop.svc.cluster.local", []string{"fd00::3"}},
		{"ahostsv4", "api.example.com", "api.example.com", []string{"198.51.100.1"}},
		{"ahosts", "api.example.com", "api.example.com", []string{"198.51.100.1"}},
		{"ahostsv4", "x.y.wild.example", "x.y.wild.example", []string{"198.51.100.3"}},
		{"ahosts", "x.y.wild.example", "x.y.wild.example", []string{"198.51.100.3"}},
		{"ahosts", "www.example.org", "www.example.org", []string{"192.0.2.1"}},
		{"ahostsv4", "many.example", "many.example", slices.Sorted(slices.Values(addresses(100)))},
		{"ahostsv4", "no.example.org", "", nil},
		{"ahostsv4", "v6only", "", nil},
	}
	for _, test := range tests {
		t.Run(test.database+" "+test.name, func(t *testing.T) {
			ips, canonical, took := getent(t, test.database, test.name)
			if diff := gocmp.Diff(test.ips, ips); diff != "" || canonical != test.canonical {
				t.Errorf("canonical name %q, want %q (-want +got):\n%s", canonical, test.canonical, diff)
			}
			if took > time.Minute {
				t.Errorf("it took %s, so the library must have timed out once", took)
			}
		})
	}
}
