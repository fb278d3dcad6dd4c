// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrUnavailable is wrapped by errors on systems without network namespaces.
var ErrUnavailable = errors.New("network namespaces are not available")

// Machine is a network namespace with one interface.
type Machine struct {
	Name     string
	IP4, IP6 netip.Addr
	ns       netns.NsHandle
}

// New creates machines. The bridge between them is in another namespace.
func New(names ...string) ([]*Machine, error) { return connect(newNamespace, true, names) }

// Here is like New, but the first machine is the caller's namespace, which contains the bridge and
// no route beyond it. The namespace must be used by the caller alone.
func Here(names ...string) ([]*Machine, error) { return connect(netns.Get, false, names) }

func connect(first func() (netns.NsHandle, error), routed bool, names []string) (all []*Machine, err error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: they need root", ErrUnavailable)
	}
	defer func() {
		if err != nil {
			Close(all)
			all = nil
		}
	}()
	next := first
	for i, name := range names {
		n := byte(i + 1)
		m := &Machine{Name: name, IP4: netip.AddrFrom4([4]byte{10, 77, 7, n}), IP6: netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x77, 0, 7, 15: n})}
		if m.ns, err = next(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			return all, fmt.Errorf("%w: %w", ErrUnavailable, err)
		} else if err != nil {
			return all, err
		}
		all, next = append(all, m), newNamespace
	}
	hub := all[0]
	err = hub.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "mesh"}}); err != nil {
			return fmt.Errorf("add a bridge: %w", err)
		}
		return hub.address("mesh", routed)
	})
	for _, m := range all[1:] {
		if err == nil {
			err = hub.Do(func() error { return hub.join(m) })
		}
		if err == nil {
			err = m.Do(func() error { return m.address("eth0", true) })
		}
	}
	return all, err
}

// Close releases the handles of the machines. Running programs keep their namespaces.
func Close(all []*Machine) {
	for _, m := range all {
		_ = m.ns.Close() // closes only the handle
	}
}

// newNamespace creates a network namespace. The calling thread stays in its own.
func newNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return 0, err
	}
	defer func() { _ = own.Close() }() // closes only the handle
	ns, err := netns.New()
	if err != nil {
		return 0, err
	}
	return ns, netns.Set(own)
}

// join connects a machine to the bridge in m.
func (m *Machine) join(other *Machine) error {
	bridge, err := netlink.LinkByName("mesh")
	if err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "to-" + other.Name, MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(int(other.ns)),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect %s: %w", other.Name, err)
	}
	return netlink.LinkSetUp(veth)
}

// Enter moves the calling goroutine, which must be locked to its thread, into the namespace. The
// goroutine must not unlock the thread, so that it ends with the goroutine.
func (m *Machine) Enter() error { return netns.Set(m.ns) }

// Do calls a function in the namespace. Sockets that it opens remain there.
func (m *Machine) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// Never unlock the thread, so that it ends with the goroutine.
		runtime.LockOSThread()
		if err := m.Enter(); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// Dial connects from the namespace.
func (m *Machine) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = m.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens in the namespace.
func (m *Machine) Listen(network, address string) (l net.Listener, err error) {
	err = m.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// address configures loopback and an interface with the machine's addresses. If the machine is
// routed, it also adds a default route, so that connections to any address are attempted.
func (m *Machine) address(link string, routed bool) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	// Envoy connects to the application from ::6, for which loopback has no range.
	six := &net.IPNet{IP: net.ParseIP("::6"), Mask: net.CIDRMask(128, 128)}
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: six, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("add ::6: %w", err)
	}
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, ip := range []netip.Addr{m.IP4, m.IP6} {
		bits := 24
		if ip.Is6() {
			bits = 64
		}
		mask := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, ip.BitLen())}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: mask, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add %s: %w", ip, err)
		}
	}
	if !routed {
		return nil
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		_, dst, err := net.ParseCIDR(all)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst}); err != nil {
			return fmt.Errorf("add the route %s: %w", all, err)
		}
	}
	return nil
}
