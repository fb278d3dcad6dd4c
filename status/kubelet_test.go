// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// routeTable returns a function that reads the kernel's routing tables. The gateway in the IPv4
// table has the byte order of this machine.
func routeTable(t *testing.T, gateway string) func(string) ([]byte, error) {
	t.Helper()
	word := func(ip string) string {
		raw := netip.MustParseAddr(ip).AsSlice()
		binary.NativeEndian.PutUint32(raw, binary.BigEndian.Uint32(raw))
		return strings.ToUpper(hex.EncodeToString(raw))
	}
	files := map[string]string{
		routesIPv4: "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
			fmt.Sprintf("eth0\t00000000\t%s\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", word(gateway)) +
			"eth0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0\n" + // an on-link route
			fmt.Sprintf("eth0\t%s\t%s\t0003\t0\t0\t0\t%s\t0\t0\t0\n", word("10.96.0.0"), word("10.9.9.9"), word("255.240.0.0")) +
			"broken line\n",
		routesIPv6: "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n" +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 fd000000000000000000000000000001 00000400 00000002 00000000 00000003     eth0\n" +
			"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n" +
			"fd010000000000000000000000000000 40 00000000000000000000000000000000 00 fd000000000000000000000000000009 00000400 00000002 00000000 00000003     eth0\n",
	}
	return func(path string) ([]byte, error) {
		if text, ok := files[path]; ok {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
}

func TestGateways(t *testing.T) {
	t.Parallel()
	want := []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00::1")}
	if got := gateways(routeTable(t, "10.244.1.1")); !slices.Equal(got, want) {
		t.Errorf("gateways() = %v, want %v", got, want)
	}
	if got := gateways(func(string) ([]byte, error) { return nil, os.ErrNotExist }); got != nil {
		t.Errorf("gateways() without tables = %v, want none", got)
	}
}

func TestHookSources(t *testing.T) {
	t.Parallel()
	node := HookSources{HostIP: netip.MustParseAddr("192.0.2.7")}
	listed := HookSources{More: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("2001:db8::/64")}}
	for _, c := range []struct {
		name    string
		sources HookSources
		peer    string
		want    bool
	}{
		{"loopback", HookSources{}, "127.0.0.1:1", true},
		{"loopback, IPv6", HookSources{}, "[::1]:1", true},
		{"what Envoy hands on", HookSources{Anybody: false, More: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, "127.0.0.6:1", false},
		{"the node", node, "192.0.2.7:4000", true},
		{"the node, mapped", node, "[::ffff:192.0.2.7]:4000", true},
		{"another node", node, "192.0.2.8:4000", false},
		{"the node is unknown", HookSources{}, "192.0.2.7:4000", false},
		{"listed", listed, "100.64.3.4:4000", true},
		{"listed, IPv6", listed, "[2001:db8::5]:4000", true},
		{"not listed", listed, "[2001:db8:0:1::5]:4000", false},
		{"any", HookSources{Anybody: true}, "203.0.113.5:4000", true},
		{"no address", node, "@", false},
	} {
		if got := c.sources.allows(&http.Request{RemoteAddr: c.peer}); got != c.want {
			t.Errorf("%s: %s may run hooks: %t, want %t", c.name, c.peer, got, c.want)
		}
	}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Via"} {
		if (HookSources{}).allows(&http.Request{RemoteAddr: "127.0.0.1:1", Header: http.Header{name: {"192.0.2.7"}}}) {
			t.Errorf("a request with %s may run hooks", name)
		}
		for list, want := range map[string]bool{"127.0.0.0/8": true, "127.0.0.1": true, "127.0.0.2": false, "0.0.0.0/0": false, "::1": false} {
			more, _, err := ParseHookSources(list)
			if err != nil {
				t.Fatal(err)
			}
			if got := (HookSources{More: more}).allows(&http.Request{RemoteAddr: "127.0.0.1:1", Header: http.Header{name: {"192.0.2.7"}}}); got != want {
				t.Errorf("a request with %s may run hooks with the list %s: %t, want %t", name, list, got, want)
			}
		}
	}
	for _, own := range ownAddresses() { // like a pod in the host network
		if peer := net.JoinHostPort(own.String(), "1"); own.Zone() == "" && !(HookSources{}).allows(&http.Request{RemoteAddr: peer}) {
			t.Errorf("%s, which this host has, may not run hooks", peer)
		}
	}
}

func TestHookSourcesOfOVN(t *testing.T) {
	t.Parallel()
	routes := gateways(routeTable(t, "10.128.2.1"))
	for peer, want := range map[string][2]bool{ // without and with AfterGateway
		"10.128.2.1": {true, true}, "10.128.2.2": {false, true}, "10.128.2.3": {false, false},
		"fd00::1": {true, true}, "fd00::2": {false, true}, "10.9.9.9": {false, false}, "192.0.2.7": {true, true},
	} {
		for i, after := range []bool{false, true} {
			s := HookSources{HostIP: netip.MustParseAddr("192.0.2.7"), AfterGateway: after}
			if got := s.isNode(netip.MustParseAddr(peer), routes); got != want[i] {
				t.Errorf("isNode(%s) with AfterGateway %t = %t, want %t", peer, after, got, want[i])
			}
		}
	}
}

func TestParseHookSources(t *testing.T) {
	t.Parallel()
	more, everybody, err := ParseHookSources("10.0.0.1, 100.64.1.1/16,fd00::1")
	if err != nil || everybody || fmt.Sprint(more) != "[10.0.0.1/32 100.64.0.0/16 fd00::1/128]" {
		t.Errorf("ParseHookSources() = %v, %t, %v", more, everybody, err)
	}
	if more, everybody, err = ParseHookSources(" any "); err != nil || !everybody || more != nil {
		t.Errorf("ParseHookSources(any) = %v, %t, %v", more, everybody, err)
	}
	if more, everybody, err = ParseHookSources(""); err != nil || everybody || more != nil {
		t.Errorf("ParseHookSources of nothing = %v, %t, %v", more, everybody, err)
	}
	for _, wrong := range []string{"kubelet", "10.0.0.1/33", "any,10.0.0.1"} {
		if _, _, err := ParseHookSources(wrong); err == nil || !strings.Contains(err.Error(), "neither an IP address nor a CIDR") {
			t.Errorf("ParseHookSources(%q) = %v, want an error", wrong, err)
		}
	}
}

// TestHookOfUnknownPeer checks that a hook from an unknown peer does not reach the application and
// gets no response, because the kubelet would treat a response as success.
func TestHookOfUnknownPeer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	app := upstream(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	probers, err := ParseProbers(`{"` + prestop + `": {"httpGet": {"port": ` + portOfAddr(t, app.URL) + `}}, "` + livez + `": {"httpGet": {"port": ` + portOfAddr(t, app.URL) + `}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sources HookSources
		runs    bool
	}{{HookSources{}, false}, {HookSources{More: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}, true}, {HookSources{Anybody: true}, true}} {
		var log strings.Builder
		s := &Server{cfg: Config{Probers: probers, InstanceIP: "127.0.0.1", HookSources: c.sources, Logger: textLogger(&log)}}
		server := upstream(t, func(w http.ResponseWriter, r *http.Request) {
			r.RemoteAddr = "203.0.113.9:4711"
			s.serveProbe(w, r)
		})
		address := server.Listener.Addr().String()
		before := asked.Load()
		resp, err := client.Get("http://" + address + prestop)
		if err == nil {
			_ = resp.Body.Close()
		}
		if ran := asked.Load() > before; ran != c.runs || (err == nil) != c.runs {
			t.Errorf("%+v: the hook ran: %t, error %v; want %t", c.sources, ran, err, c.runs)
		}
		wantAnswer(t, address, livez, http.StatusOK, "") // every peer may send probes
		server.Close()                                   // completes the log
		if refused := strings.Contains(log.String(), "address=203.0.113.9:4711") && strings.Contains(log.String(), "OUTRIGGER_HOOK_SOURCES"); refused == c.runs {
			t.Errorf("%+v: unexpected log %q", c.sources, log.String())
		}
	}
}
