// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package netlab

import (
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ProxyID is the group id of agent and Envoy, whose traffic is not redirected.
const ProxyID = 1337

// Redirect redirects the machine's outbound and inbound traffic to its Envoy.
func (m *Machine) Redirect() error {
	return m.rules(func(c *nftables.Conn, table *nftables.Table) {
		output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		rule(c, output, append(fromProxy(expr.CmpOpEq), verdict(expr.VerdictReturn))...)
		rule(c, output, append(onLoopback(expr.MetaKeyOIFNAME), verdict(expr.VerdictReturn))...)
		rule(c, output, append(tcp(), redirectTo(15001)...)...)
		input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
		rule(c, input, append(toPort(15020), verdict(expr.VerdictReturn))...)
		rule(c, input, append(tcp(), redirectTo(15006)...)...)
	})
}

// Transparent is like Redirect for outbound traffic. Inbound traffic is passed to Envoy, and from
// there to the application, with its original addresses.
func (m *Machine) Transparent() error {
	const table4 = 133
	err := m.Do(func() error {
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
			marked.Family, marked.Mark, marked.Table = family, ProxyID, table4
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
	if err != nil {
		return err
	}
	return m.rules(func(c *nftables.Conn, table *nftables.Table) {
		output := c.AddChain(&nftables.Chain{Name: "output", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
		rule(c, output, append(fromProxy(expr.CmpOpEq), verdict(expr.VerdictReturn))...)
		rule(c, output, append(onLoopback(expr.MetaKeyOIFNAME), verdict(expr.VerdictReturn))...)
		rule(c, output, append(tcp(), redirectTo(15001)...)...)
		input := c.AddChain(&nftables.Chain{Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
		mark := binaryutil.NativeEndian.PutUint32(ProxyID)
		// Traffic from Envoy to the application carries the mark. It is saved in the connection,
		// for the responses.
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
func (m *Machine) rules(set func(*nftables.Conn, *nftables.Table)) error {
	return m.Do(func() error {
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
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKGID, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(ProxyID)}}
}

func onLoopback(key expr.MetaKey) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("lo\x00")}}
}

func redirectTo(port uint16) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)}, &expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}}
}
