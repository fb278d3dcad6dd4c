// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// proxyID is the group of agent and Envoy: what they send is not redirected.
const proxyID = 1337

// machine is a network namespace with one interface on a network of the test.
type machine struct {
	name string
	ns   netns.NsHandle
	ip4  netip.Addr
	ip6  netip.Addr
}

// machines makes network namespaces that reach each other over a bridge, which
// is in one more of them, that of the first name. They end with the test.
func machines(t *testing.T, names ...string) []*machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	out := make([]*machine, 0, len(names))
	for i, name := range names {
		n := byte(i + 1)
		m := &machine{name: name, ip4: netip.AddrFrom4([4]byte{10, 77, 7, n}), ip6: netip.MustParseAddr("fd00:77:7::").Next()}
		for range i {
			m.ip6 = m.ip6.Next()
		}
		var err error
		if m.ns, err = newNamespace(); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			t.Skipf("this machine gives no network namespaces: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.ns.Close() }) // nothing is left to be told
		out = append(out, m)
	}
	hub := out[0]
	hub.do(t, func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "mesh"}}) })
	hub.address(t, "mesh")
	for _, m := range out[1:] {
		hub.do(t, func() error {
			bridge, err := netlink.LinkByName("mesh")
			if err != nil {
				return err
			}
			veth := &netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: "to-" + m.name, MasterIndex: bridge.Attrs().Index},
				PeerName:  "eth0", PeerNamespace: netlink.NsFd(int(m.ns)),
			}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			return netlink.LinkSetUp(veth)
		})
		m.address(t, "eth0")
	}
	return out
}

// newNamespace makes a network namespace; the calling thread stays where it is.
func newNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return 0, err
	}
	defer func() { _ = own.Close() }() // only read
	ns, err := netns.New()
	if err != nil {
		return 0, err
	}
	return ns, netns.Set(own)
}

// within calls a function in the namespace. What it opens stays there.
func (m *machine) within(f func() error) error {
	result := make(chan error, 1)
	go func() {
		// The thread is never given back: it ends with the goroutine.
		runtime.LockOSThread()
		if err := netns.Set(m.ns); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

func (m *machine) do(t *testing.T, f func() error) {
	t.Helper()
	if err := m.within(f); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
}

// address gives an interface the addresses of the machine, and a way out, so
// that connections to any address are tried.
func (m *machine) address(t *testing.T, link string) {
	t.Helper()
	m.do(t, func() error {
		for _, name := range []string{"lo", link} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			if name != link {
				// What Envoy sends to the application has the source ::6, of which
				// loopback has no range.
				six := &net.IPNet{IP: net.ParseIP("::6"), Mask: net.CIDRMask(128, 128)}
				if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: six, Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
				continue
			}
			for _, ip := range []netip.Addr{m.ip4, m.ip6} {
				bits := 24
				if ip.Is6() {
					bits = 64
				}
				mask := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, ip.BitLen())}
				if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: mask, Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
			}
			for _, all := range []string{"0.0.0.0/0", "::/0"} {
				_, dst, err := net.ParseCIDR(all)
				if err != nil {
					return err
				}
				if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// start starts a program in the namespace.
func (m *machine) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	m.do(t, cmd.Start)
}

// dial connects from the namespace.
func (m *machine) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = m.within(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// client makes requests from the namespace, each on a connection of its own.
func (m *machine) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: m.dial, DisableKeepAlives: true}}
}

// listen listens in the namespace until the test ends.
func (m *machine) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	m.do(t, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	})
	t.Cleanup(func() { _ = l.Close() }) // a server may have done so
	return l
}

// serve answers requests in the namespace until the test ends.
func (m *machine) serve(t *testing.T, address string, h http.Handler) {
	t.Helper()
	s := &http.Server{Handler: h}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	l := m.listen(t, address)
	go func() { _ = s.Serve(l) }() // it ends with the listener
	t.Cleanup(func() { _ = s.Close() })
}

// talk answers each connection with what it greets with, then with the address
// that it came from and every byte that comes.
func (m *machine) talk(t *testing.T, address, greeting string) {
	t.Helper()
	l := m.listen(t, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }() // the other side sees it
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, greeting+host+"\n") // as above
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// redirect sends what the machine sends, and what comes to it, to its Envoy.
func (m *machine) redirect(t *testing.T) {
	t.Helper()
	m.rules(t, func(c *nftables.Conn, table *nftables.Table) {
		output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		rule(c, output, append(fromProxy(expr.CmpOpEq), verdict(expr.VerdictReturn))...)
		rule(c, output, append(onLoopback(expr.MetaKeyOIFNAME), verdict(expr.VerdictReturn))...)
		rule(c, output, append(tcp(), redirectTo(15001)...)...)
		input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		rule(c, input, append(toPort(15020), verdict(expr.VerdictReturn))...)
		rule(c, input, append(tcp(), redirectTo(15006)...)...)
	})
}

// transparent is redirect for what the machine sends; what comes to it is given
// to Envoy with both addresses as they are, and so it goes on.
func (m *machine) transparent(t *testing.T) {
	t.Helper()
	const table4 = 133
	m.do(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all := "0.0.0.0/0"
			if family == netlink.FAMILY_V6 {
				all = "::/0"
			}
			_, dst, err := net.ParseCIDR(all)
			if err != nil {
				return err
			}
			marked := netlink.NewRule()
			marked.Family, marked.Mark, marked.Table = family, proxyID, table4
			if err := netlink.RuleAdd(marked); err != nil {
				return err
			}
			local := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Table: table4, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
			if err := netlink.RouteAdd(local); err != nil {
				return err
			}
		}
		return nil
	})
	m.rules(t, func(c *nftables.Conn, table *nftables.Table) {
		output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		rule(c, output, append(fromProxy(expr.CmpOpEq), verdict(expr.VerdictReturn))...)
		rule(c, output, append(onLoopback(expr.MetaKeyOIFNAME), verdict(expr.VerdictReturn))...)
		rule(c, output, append(tcp(), redirectTo(15001)...)...)
		input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
		mark := binaryutil.NativeEndian.PutUint32(proxyID)
		// What Envoy sends to the application carries the mark: the connection
		// keeps it, for the answers.
		rule(c, input,
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark},
			&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true}, verdict(expr.VerdictAccept))
		rule(c, input, append(onLoopback(expr.MetaKeyIIFNAME), verdict(expr.VerdictReturn))...)
		rule(c, input, append(toPort(15020), verdict(expr.VerdictReturn))...)
		rule(c, input, append(tcp(),
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(15006)},
			&expr.TProxy{Family: unix.NFPROTO_UNSPEC, TableFamily: unix.NFPROTO_INET, RegPort: 1},
			verdict(expr.VerdictAccept))...)
		back := c.AddChain(&nftables.Chain{Name: "back", Table: table, Type: nftables.ChainTypeRoute, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle})
		rule(c, back, append(fromProxy(expr.CmpOpNeq),
			&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mark},
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true})...)
	})
}

// rules sets the rules of the namespace.
func (m *machine) rules(t *testing.T, set func(*nftables.Conn, *nftables.Table)) {
	t.Helper()
	m.do(t, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		set(c, c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "mesh"}))
		return c.Flush()
	})
}

func rule(c *nftables.Conn, chain *nftables.Chain, exprs ...expr.Any) {
	c.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs})
}

func verdict(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }

func tcp() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}}
}

func toPort(port uint16) []expr.Any {
	return append(tcp(), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)})
}

func fromProxy(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKGID, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(proxyID)}}
}

func onLoopback(key expr.MetaKey) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("lo\x00")}}
}

func redirectTo(port uint16) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)}, &expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}}
}
