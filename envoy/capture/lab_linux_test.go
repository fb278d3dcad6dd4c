// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// lab is a pod with Envoy's ports, an application and the agent's DNS, and a peer that has all
// other addresses. Every server answers with its name, so that a connection shows where it ended.
type lab struct {
	pod, peer *netlab.Machine
	// outside are addresses beyond the peer; resolver and other are addresses of the peer.
	outside4, outside6, elsewhere4 netip.Addr
	resolver, other                netip.Addr
	// patience is how long an answer may take. Zero means a minute, after which the test fails.
	patience time.Duration
}

// Users that own the sockets of probes.
const (
	application = 1000
	proxy       = 1337
)

// appPorts are ports of the application, and of the peer.
var appPorts = []uint16{53, 80, 443, 8080, 9000, 15008, 15020}

// emptyLab returns a lab in which nothing listens.
func emptyLab(t *testing.T) *lab {
	t.Helper()
	machines, err := netlab.New("peer", "pod")
	if errors.Is(err, netlab.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlab.Close(machines) })
	return &lab{peer: machines[0], pod: machines[1]}
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := emptyLab(t)
	l.outside4, l.outside6 = netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")
	l.elsewhere4, l.other = netip.MustParseAddr("10.97.0.1"), netip.MustParseAddr("10.77.7.200")
	l.resolver = l.peer.IP4
	l.do(t, l.peer, func() error { return l.peerRoutes() })
	l.do(t, l.pod, func() error { return l.podRoutes() })
	for _, m := range []*netlab.Machine{l.peer, l.pod} {
		name := "app"
		if m == l.peer {
			name = "peer"
		}
		for _, port := range appPorts {
			l.serve(t, m, port, name)
		}
	}
	for port, name := range map[uint16]string{15001: "outbound", 15006: "inbound", portAgentDNS: "dns"} {
		l.serve(t, l.pod, port, name)
	}
	l.serveUDP(t, l.pod, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), portAgentDNS), "dns")
	for _, a := range []netip.Addr{l.resolver, l.other, l.peer.IP6} {
		l.serveUDP(t, l.peer, netip.AddrPortFrom(a, portDNS), "peer")
	}
	l.serveUDP(t, l.pod, netip.AddrPortFrom(netip.IPv6Loopback(), portAgentDNS), "dns")
	return l
}

var outsideNetworks = []string{"10.96.0.0/16", "10.97.0.0/16", "fd00:96::/64"}

// peerRoutes makes other and all addresses of the outside networks local addresses of the peer.
func (l *lab) peerRoutes() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	bridge, err := netlink.LinkByName("mesh")
	if err != nil {
		return err
	}
	address := &net.IPNet{IP: l.other.AsSlice(), Mask: net.CIDRMask(32, 32)}
	if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: address}); err != nil {
		return err
	}
	for _, text := range outsideNetworks {
		_, network, err := net.ParseCIDR(text)
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: network, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("local %s: %w", text, err)
		}
	}
	return nil
}

// podRoutes adds routes to the outside networks by way of the peer.
func (l *lab) podRoutes() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, text := range outsideNetworks {
		_, network, err := net.ParseCIDR(text)
		if err != nil {
			return err
		}
		gateway := l.peer.IP4
		if network.IP.To4() == nil {
			gateway = l.peer.IP6
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network, Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("route to %s: %w", text, err)
		}
	}
	return nil
}

func (l *lab) do(t *testing.T, m *netlab.Machine, f func() error) {
	t.Helper()
	if err := m.Do(f); err != nil {
		t.Fatal(err)
	}
}

// serve responds with a name to TCP connections to a port, whatever their destination address.
func (l *lab) serve(t *testing.T, m *netlab.Machine, port uint16, name string) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if ctlErr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1), unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1))
		}); ctlErr != nil {
			return ctlErr
		}
		return err
	}}
	var listener net.Listener
	l.do(t, m, func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", ":"+strconv.Itoa(int(port)))
		return err
	})
	t.Cleanup(func() { _ = listener.Close() }) // nothing is lost
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			answer := name
			if local, ok := c.LocalAddr().(*net.TCPAddr); ok && local.Port != int(port) {
				answer += " with TPROXY"
			}
			go func() {
				_, _ = io.WriteString(c, answer) // the probe reports what it gets
				_, _ = io.Copy(io.Discard, c)    // until the probe resets the connection
				_ = c.Close()                    // nothing is lost
			}()
		}
	}()
}

func (l *lab) serveUDP(t *testing.T, m *netlab.Machine, at netip.AddrPort, name string) {
	t.Helper()
	t.Cleanup(l.serveUDPAs(t, m, at, name, proxy))
}

// onceFree binds an address as soon as it is free. A program that another test is starting may
// still have a copy of a closed socket.
func onceFree(bind func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err := bind(); !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			return err
		}
	}
}

// serveUDPAs responds to packets with a name, from a socket of the given user, until stop is
// called.
func (l *lab) serveUDPAs(t *testing.T, m *netlab.Machine, at netip.AddrPort, name string, user int) (stop func()) {
	t.Helper()
	var c *net.UDPConn
	l.do(t, m, func() (err error) {
		if err := unix.Setfsuid(user); err != nil {
			return err
		}
		return onceFree(func() (err error) {
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		})
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 512)
		for {
			_, from, err := c.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(name), from) // the probe reports what it gets
		}
	}()
	return func() {
		_ = c.Close() // nothing is lost
		<-done        // the port is free only now
	}
}

// probe is a connection from a socket of a user and a group.
type probe struct {
	network string // "" is tcp
	from    *netlab.Machine
	user    int
	group   int // 0 means the same number as user
	local   string
	to      string
}

// reaches returns the name of the server that answers.
func (l *lab) reaches(t *testing.T, p probe) string {
	t.Helper()
	network := p.network
	if network == "" {
		network = "tcp"
	}
	patience := time.Minute
	if l.patience > 0 {
		patience = l.patience
	}
	dialer := net.Dialer{Timeout: patience}
	if p.local != "" {
		local := netip.MustParseAddrPort(p.local)
		if dialer.LocalAddr = net.TCPAddrFromAddrPort(local); network == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(local)
		}
	}
	var answer string
	err := p.from.Do(func() error {
		group := p.group
		if group == 0 {
			group = p.user
		}
		if err := errors.Join(unix.Setfsgid(group), unix.Setfsuid(p.user)); err != nil {
			return err
		}
		var c net.Conn
		if err := onceFree(func() (err error) {
			c, err = dialer.DialContext(t.Context(), network, p.to)
			return err
		}); err != nil {
			return err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			// A socket in TIME-WAIT would reject a connection from the same port that ends at the
			// same server: without the tracked connections the kernel does not choose another port.
			if err := tcp.SetLinger(0); err != nil {
				return err
			}
		}
		defer func() { _ = c.Close() }() // nothing is lost
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := c.Write([]byte("who?")); err != nil {
				return err
			}
		}
		buffer := make([]byte, 64)
		n, err := c.Read(buffer)
		answer = string(buffer[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	var timeout interface{ Timeout() bool }
	if l.patience > 0 && errors.As(err, &timeout) && timeout.Timeout() {
		return "lost"
	}
	if err != nil {
		t.Errorf("%+v: %v\n%s", p, err, l.tracked(t))
		return err.Error()
	}
	return answer
}

// tracked returns the connections that the kernel tracks in the pod, to explain a lost one.
func (l *lab) tracked(t *testing.T) string {
	t.Helper()
	var lines []string
	l.do(t, l.pod, func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				lines = append(lines, f.String())
			}
		}
		return nil
	})
	return strings.Join(lines, "\n")
}

// settings parses a command line on a system that has the addresses of the lab.
func (l *lab) settings(t *testing.T, line string, environ ...string) *Settings {
	t.Helper()
	system := testSystem()
	system.addresses = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: l.pod.IP4.AsSlice()}, &net.IPNet{IP: l.pod.IP6.AsSlice()}}, nil
	}
	system.resolvConf = func() ([]byte, error) {
		return fmt.Appendf(nil, "search a.example\nnameserver %s\nnameserver %s\n", l.resolver, l.peer.IP6), nil
	}
	s, warnings, err := readOn(t, system, (*Flags).Add, line, environ...)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	return s
}

// apply applies a command line in the pod.
func (l *lab) apply(t *testing.T, line string, environ ...string) {
	t.Helper()
	s := l.settings(t, line, environ...)
	l.do(t, l.pod, func() error {
		if err := s.run(t.Context(), slog.New(slog.DiscardHandler), io.Discard); err != nil {
			return err
		}
		// Forget tracked connections: a connection with the same ports as an earlier one would end
		// where that one did.
		return netlink.ConntrackTableFlush(netlink.ConntrackTable)
	})
}
