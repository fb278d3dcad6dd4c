// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAddressesOf checks that addresses at which other hosts cannot reach the proxy are ignored:
// those of interfaces that are down, loopback addresses and link-local addresses.
func TestAddressesOf(t *testing.T) {
	t.Parallel()
	table := map[string][]string{
		"lo": {"127.0.0.1/8", "::1/128"}, "down": {"10.9.9.9/24"}, "gone": nil, "eth0": {"10.0.0.7/24", "fe80::1/64", "fd00::7/64"},
	}
	interfaces := []net.Interface{
		{Name: "lo", Flags: net.FlagUp | net.FlagLoopback}, {Name: "down"}, {Name: "gone", Flags: net.FlagUp}, {Name: "eth0", Flags: net.FlagUp},
	}
	got := addressesOf(interfaces, func(i net.Interface) ([]net.Addr, error) {
		if i.Name == "gone" {
			return nil, errors.New("no such interface")
		}
		var addrs []net.Addr
		for _, text := range table[i.Name] {
			ip, ipNet, err := net.ParseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, &net.IPNet{IP: ip, Mask: ipNet.Mask})
		}
		return addrs, nil
	})
	want := []networkInterface{{name: "lo", loopback: true}, {name: "eth0", ips: []string{"10.0.0.7", "fd00::7"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(networkInterface{})); diff != "" {
		t.Error(diff)
	}
}

// TestAwaitAddress checks that the first address of an interface is awaited, but not on a machine
// that has one already, or no network.
func TestAwaitAddress(t *testing.T) {
	t.Parallel()
	lo, up, ready := networkInterface{name: "lo", loopback: true}, networkInterface{name: "eth0"}, networkInterface{name: "eth0", ips: []string{"10.0.0.7"}}
	for name, c := range map[string]struct {
		seen  [][]networkInterface // by call; the last one stays
		reads int
	}{
		"comes":      {[][]networkInterface{{lo, up}, {lo, up}, {lo, ready}}, 3},
		"there":      {[][]networkInterface{{lo, up, ready}}, 1},
		"no network": {[][]networkInterface{{lo}}, 1},
		"goes down":  {[][]networkInterface{{lo, up}, {lo}}, 2},
	} {
		n := 0
		read := func() []networkInterface {
			n++
			return c.seen[min(n, len(c.seen))-1]
		}
		got := awaitAddress(t.Context(), slog.New(slog.DiscardHandler), read)()
		if diff := cmp.Diff(c.seen[len(c.seen)-1], got, cmp.AllowUnexported(networkInterface{})); diff != "" || n != c.reads {
			t.Errorf("%s: %d reads, want %d; %s", name, n, c.reads, diff)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := awaitAddress(ended, slog.New(slog.DiscardHandler), func() []networkInterface { return []networkInterface{lo, up} })(); len(got) != 2 {
		t.Errorf("after the end: %v", got)
	}
}

// TestExcludedInterfaces checks that the annotation excludes the addresses of interfaces, but never
// INSTANCE_IP.
func TestExcludedInterfaces(t *testing.T) {
	t.Parallel()
	for exclude, want := range map[string][]string{
		"":             {"10.0.0.1", "10.0.0.2"},
		"net1":         {"10.0.0.1"},
		"eth0":         {"10.0.0.1", "10.0.0.2"},
		" net1 ,,eth0": {"10.0.0.1"},
		"net":          {"10.0.0.1", "10.0.0.2"},
	} {
		files := map[string]string{annotationsFile: "traffic.sidecar.istio.io/excludeInterfaces=" + strconv.Quote(exclude)}
		cfg, warnings, err := resolve(t.Context(), testSources(files))
		if err != nil {
			t.Errorf("%q: %v", exclude, err)
			continue
		}
		if !slices.Equal(cfg.metadata.InstanceIPs, want) {
			t.Errorf("%q: addresses %q, want %q", exclude, cfg.metadata.InstanceIPs, want)
		}
		if warned := strings.Contains(strings.Join(warnings, ""), `excludeInterfaces names "net": there is no such interface, or it is down`); warned != (exclude == "net") {
			t.Errorf("%q: warnings %q", exclude, warnings)
		}
	}
}
