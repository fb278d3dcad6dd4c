// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// wideLab is a lab with a third machine, the guest, which reaches other machines only through the
// pod: by the pod's interface eth1 and by not-istio-nic. All other addresses belong to the peer.
type wideLab struct {
	*lab
	guest *netlab.Machine
	// names contains addresses by the names that probes use.
	names map[string]netip.Addr
}

// Interfaces of the pod that lead to the guest.
const (
	guestNIC = "eth1"
	otherNIC = "not-istio-nic"
)

func newWideLab(t *testing.T) *wideLab {
	t.Helper()
	machines, err := netlab.New("peer", "pod", "guest")
	if errors.Is(err, netlab.ErrUnavailable) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlab.Close(machines) })
	l := &wideLab{lab: &lab{peer: machines[0], pod: machines[1]}, guest: machines[2]}
	l.resolver, l.other = l.peer.IP4, netip.MustParseAddr("10.77.7.200")
	l.names = map[string]netip.Addr{
		"pod4": l.pod.IP4, "pod6": l.pod.IP6, "resolver": l.resolver, "resolver6": l.peer.IP6, "other": l.other,
		"outside4": netip.MustParseAddr("10.96.0.1"), "outside6": netip.MustParseAddr("fd00:96::1"),
		"local": netip.MustParseAddr("127.0.0.1"), "local6": netip.IPv6Loopback(), "local3": netip.MustParseAddr("127.0.0.3"),
		"podeth1": guestAddress(1, 2, false), "podnic": guestAddress(2, 2, false), "podeth1v6": guestAddress(1, 2, true),
	}
	l.do(t, l.peer, func() error {
		bridge, err := netlink.LinkByName("mesh")
		if err != nil {
			return err
		}
		for _, a := range []netip.Addr{l.other, l.address("::127.0.0.53"), l.address("9.9.1.1")} {
			if err := netlink.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(single(a)), Flags: unix.IFA_F_NODAD}); err != nil {
				return fmt.Errorf("add %s: %w", a, err)
			}
		}
		return everythingIsLocal()
	})
	l.do(t, l.pod, l.podNetwork)
	l.do(t, l.guest, l.guestNetwork)
	l.do(t, l.peer, func() error {
		return errors.Join(l.route("mesh", "10.78.0.0/16", l.pod.IP4), l.route("mesh", "fd00:78::/32", l.pod.IP6))
	})
	for m, name := range map[*netlab.Machine]string{l.peer: "peer", l.pod: "app", l.guest: "guest"} {
		for _, port := range []uint16{22, 53, 80, 1111, 3333, 4000, 5555, 6000, 15008, 15020, 15021, 15090, 31000} {
			l.serve(t, m, port, name)
		}
	}
	for port, name := range map[uint16]string{15001: "outbound", 15006: "inbound", portAgentDNS: "dns"} {
		l.serve(t, l.pod, port, name)
	}
	for m, addresses := range map[*netlab.Machine][]string{l.peer: {"resolver", "resolver6", "other", "9.9.1.1", "::127.0.0.53"}, l.pod: {"127.0.0.53", "pod4", "pod6"}} {
		for _, a := range addresses {
			l.serveUDP(t, m, netip.AddrPortFrom(l.address(a), portDNS), map[*netlab.Machine]string{l.peer: "peer", l.pod: "app"}[m])
		}
	}
	return l
}

// address returns the address with a name, or parses the text as an address.
func (l *wideLab) address(text string) netip.Addr {
	if a, ok := l.names[text]; ok {
		return a
	}
	return netip.MustParseAddr(text)
}

// guestAddress is an address of a network between pod and guest: host 1 is the guest, host 2 the
// pod.
func guestAddress(network, host byte, six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x78, 0, network, 15: host})
	}
	return netip.AddrFrom4([4]byte{10, 78, network, host})
}

// everythingIsLocal makes all addresses to which probes connect addresses of this namespace.
func everythingIsLocal() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, text := range []string{"10.96.0.0/16", "1.1.0.0/16", "9.9.0.0/16", "2001:db8::/32", "fd00:96::/64"} {
		network := netip.MustParsePrefix(text)
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(network), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("local %s: %w", text, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (l *wideLab) route(link, to string, by netip.Addr) error {
	found, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: found.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(to)), Gw: by.AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("route to %s: %w", to, err)
	}
	return nil
}

// podNetwork connects the pod to the guest and forwards between guest and peer.
func (l *wideLab) podNetwork() error {
	for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	var guest netns.NsHandle
	if err := l.guest.Do(func() (err error) {
		guest, err = netns.Get()
		return err
	}); err != nil {
		return err
	}
	defer func() { _ = guest.Close() }() // closes only the handle
	for i, name := range []string{guestNIC, otherNIC} {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "pod-" + name[:4], PeerNamespace: netlink.NsFd(int(guest))}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("add %s: %w", name, err)
		}
		if err := errors.Join(netlink.LinkSetUp(link), addresses(link, byte(i+1), 2)); err != nil {
			return err
		}
	}
	for _, to := range []string{"10.96.0.0/16", "1.1.0.0/16", "9.9.0.0/16"} {
		if err := l.route("eth0", to, l.peer.IP4); err != nil {
			return err
		}
	}
	for _, to := range []string{"2001:db8::/32", "fd00:96::/64", "::127.0.0.53/128"} {
		if err := l.route("eth0", to, l.peer.IP6); err != nil {
			return err
		}
	}
	return nil
}

func addresses(link netlink.Link, network, host byte) error {
	four := netip.PrefixFrom(guestAddress(network, host, false), 24)
	six := netip.PrefixFrom(guestAddress(network, host, true), 96)
	return errors.Join(netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(four)}), netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(six), Flags: unix.IFA_F_NODAD}))
}

// guestNetwork routes everything outside through the pod.
func (l *wideLab) guestNetwork() error {
	for i, name := range []string{guestNIC, otherNIC} {
		link, err := netlink.LinkByName("pod-" + name[:4])
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(link), addresses(link, byte(i+1), 1)); err != nil {
			return err
		}
	}
	return errors.Join(l.route("pod-eth1", "9.9.0.0/16", guestAddress(1, 2, false)), l.route("pod-eth1", "10.96.0.0/16", guestAddress(1, 2, false)), l.route("pod-eth1", "2001:db8::/32", guestAddress(1, 2, true)))
}

// question is a named probe: who connects, from where, and to what.
type question struct {
	name string
	probe
}

// ask parses the name of a probe: "[udp ]<who>[@<source>] <address> <port>". Who is "peer",
// "guest", or a user and group of the pod.
func (l *wideLab) ask(t *testing.T, name string) question {
	t.Helper()
	words := strings.Fields(name)
	q := question{name: name}
	if words[0] == "udp" {
		q.network, words = "udp", words[1:]
	}
	if len(words) != 3 {
		t.Fatalf("probe %q", name)
	}
	who, source, _ := strings.Cut(words[0], "@")
	switch who {
	case "peer":
		q.from = l.peer
	case "guest":
		q.from = l.guest
	default:
		q.from = l.pod
		if _, err := fmt.Sscanf(who, "%d/%d", &q.user, &q.group); err != nil {
			t.Fatalf("probe %q: %v", name, err)
		}
	}
	if source != "" {
		q.local = net.JoinHostPort(source, "0")
	}
	q.to = net.JoinHostPort(l.address(words[1]).String(), words[2])
	return q
}

// questions returns the connections that are checked for each case. The users and groups of the pod
// are those of the application (1000/1000), of the proxy (1337), and of the cases.
func (l *wideLab) questions(t *testing.T) (all []question) {
	t.Helper()
	add := func(format string, words ...string) {
		for _, word := range words {
			all = append(all, l.ask(t, fmt.Sprintf(format, word)))
		}
	}
	owners := []string{"1000/1000", "1337/1000", "1000/1337", "3/1000", "4/1000", "1000/1", "1000/2", "1000/202", "1000/888", "1000/4000", "1000670000/1000", "1000/1000670001"}
	// Outbound.
	for _, to := range []string{"9.9.1.1", "1.1.1.1", "outside4", "2001:db8::1", "outside6"} {
		add("1000/1000 "+to+" %s", "80", "31000", "5555")
	}
	add("1000/1000 %s", "10.78.1.1 80", "10.78.2.1 80", "fd00:78:1::1 80", "fd00:78:2::1 80", "outside4 15020", "outside4 15008", "outside6 15008", "outside4 53", "other 53", "resolver 53", "resolver6 53", "127.0.0.53 53", "::127.0.0.53 53")
	for _, owner := range owners[1:] {
		add(owner+" %s", "9.9.1.1 80", "outside4 80", "2001:db8::1 80", "127.0.0.53 53", "outside4 53")
	}
	// The workload to itself.
	for _, owner := range owners[:6] {
		add(owner+" %s", "pod4 80", "pod6 80", "pod4 15008", "pod4 53", "local 80", "local6 80", "local3 80", "127.1.2.3 80")
	}
	add("1337/1337%s", "@127.0.0.6 pod4 80", "@127.0.0.6 local 80", "@::6 pod6 80", "@127.0.0.6 pod4 15008", " podeth1 80")
	add("1000/1000@127.0.0.6 %s", "pod4 80", "local3 80")
	// Inbound.
	add("peer pod4 %s", "22", "80", "1111", "3333", "4000", "6000", "15008", "15020", "15021", "15090", "31000", "53")
	add("peer pod6 %s", "80", "1111", "4000", "6000", "15008", "15090", "31000")
	add("guest %s", "podeth1 80", "podeth1 4000", "podnic 80", "podeth1v6 80", "podeth1v6 4000", "9.9.1.1 80", "outside4 80", "2001:db8::1 80", "outside4 15008")
	// DNS.
	for _, owner := range owners {
		add("udp "+owner+" %s 53", "resolver", "other", "127.0.0.53", "::127.0.0.53", "resolver6", "9.9.1.1")
	}
	add("udp peer %s 53", "pod4", "pod6")
	return append(all, question{name: "invalid packet"})
}

// effects returns the connections that do not end where they usually do, one line for each
// destination.
func (l *wideLab) effects(t *testing.T, all []question, usual map[string]string) (lines []string) {
	t.Helper()
	by := map[string][]string{}
	for _, q := range all {
		if answer := l.answer(t, q); answer != usual[q.name] {
			by[answer] = append(by[answer], q.name)
		}
	}
	for answer, names := range by {
		lines = append(lines, answer+": "+strings.Join(names, ", "))
	}
	slices.Sort(lines)
	return lines
}

// answer returns where a connection ends.
func (l *wideLab) answer(t *testing.T, q question) (answer string) {
	t.Helper()
	if q.from != nil {
		return l.reaches(t, q.probe)
	}
	l.do(t, l.peer, func() (err error) {
		answer, err = afterInvalid(l.peer.IP4, l.pod.IP4)
		return err
	})
	return answer
}

// afterInvalid sends a packet that belongs to no connection, followed by one that opens a
// connection. It returns "reset" if the system responds to the first packet, and "dropped" if it
// responds to the second one only. The acknowledgement number tells them apart.
func afterInvalid(from, to netip.Addr) (string, error) {
	// Packets stay in order on a single processor.
	var one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &one); err != nil {
		return "", err
	}
	for i, found := 0, false; i < len(one)*bits.UintSize; i++ {
		if found {
			one.Clear(i)
		}
		found = found || one.IsSet(i)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return "", err
	}
	c, err := net.DialIP("ip4:tcp", nil, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // nothing is lost
	const ours, closed, invalid, opening = 9, 9, 1000, 2000
	if _, err := c.Write(segment(from, to, ours, closed, invalid, synFlag|finFlag)); err != nil {
		return "", err
	}
	if _, err := c.Write(segment(from, to, ours, closed, opening, synFlag)); err != nil {
		return "", err
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	for packet := make([]byte, 1500); ; {
		n, _, err := c.ReadFromIP(packet)
		if err != nil {
			return "", err
		}
		if n < 20 || binary.BigEndian.Uint16(packet) != closed || binary.BigEndian.Uint16(packet[2:]) != ours {
			continue
		}
		if acknowledged := binary.BigEndian.Uint32(packet[8:]); acknowledged >= opening {
			return "dropped", nil
		}
		return "reset", nil
	}
}

// Flags of TCP segments.
const (
	finFlag = 1
	synFlag = 2
)

// segment is a TCP segment without data.
func segment(from, to netip.Addr, source, destination uint16, sequence uint32, flags byte) []byte {
	s := make([]byte, 20)
	binary.BigEndian.PutUint16(s, source)
	binary.BigEndian.PutUint16(s[2:], destination)
	binary.BigEndian.PutUint32(s[4:], sequence)
	s[12], s[13] = 5<<4, flags
	binary.BigEndian.PutUint16(s[14:], 1024)
	// The checksum covers the addresses, the protocol and the length as well.
	var sum uint32
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), {0, unix.IPPROTO_TCP, 0, byte(len(s))}, s} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(s[16:], ^uint16(sum))
	return s
}
