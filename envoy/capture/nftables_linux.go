// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// replaceTables replaces our tables by the rules in one transaction: packets pass the old rules or
// the new ones. Without rules it removes the tables.
func replaceTables(families []Family) error {
	c, err := nftables.New(nftables.WithSockOptions(func(conn *netlink.Conn) error {
		return errors.Join(conn.SetWriteBuffer(transactionBytes), conn.SetReadBuffer(transactionBytes))
	}))
	if err != nil {
		return explain(fmt.Errorf("opening netlink: %w", err))
	}
	old, err := ownTables(c)
	if err != nil {
		return err
	}
	for _, t := range old {
		c.DelTable(t)
	}
	for _, f := range families {
		t := c.AddTable(&nftables.Table{Family: nftFamily(f.Six), Name: ownTable})
		chains := map[string]*nftables.Chain{}
		for _, r := range f.Rules {
			for _, name := range []string{r.chain, r.action.chain} {
				if key := nftChain(r.table, name); name != "" && chains[key] == nil {
					chains[key] = c.AddChain(newChain(t, r.table, name))
				}
			}
		}
		for _, r := range f.Rules {
			for _, exprs := range r.exprs(f.Six) {
				c.AddRule(&nftables.Rule{Table: t, Chain: chains[nftChain(r.table, r.chain)], Exprs: exprs})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return explain(fmt.Errorf("setting the rules of nftables: %w", err))
	}
	return nil
}

// transactionBytes is enough for all rules that settings can make, and for their acknowledgements.
const transactionBytes = 16 << 20

// explain adds the usual cure to an error of the kernel.
func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w; it needs the capability NET_ADMIN", err)
	}
	for _, missing := range []error{unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.ENOENT} {
		if errors.Is(err, missing) {
			return fmt.Errorf("%w: %w", errUnsupported, err)
		}
	}
	return err
}

// ownTables returns the tables that exist.
func ownTables(c *nftables.Conn) (own []*nftables.Table, err error) {
	for _, six := range []bool{false, true} {
		tables, err := c.ListTablesOfFamily(nftFamily(six))
		if err != nil {
			return nil, explain(fmt.Errorf("listing the tables of nftables: %w", err))
		}
		for _, t := range tables {
			if t.Name == ownTable {
				own = append(own, t)
			}
		}
	}
	return own, nil
}

func nftFamily(six bool) nftables.TableFamily {
	if six {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// nftChain returns the name of a chain in our table, which holds those of all tables of iptables.
func nftChain(table, chain string) string { return table + "-" + strings.ToLower(chain) }

func newChain(t *nftables.Table, table, name string) *nftables.Chain {
	chain := &nftables.Chain{Table: t, Name: nftChain(table, name)}
	if !isBuiltin(name) {
		return chain
	}
	chain.Hooknum = nftables.ChainHookPrerouting
	if name == chainOutput {
		chain.Hooknum = nftables.ChainHookOutput
	}
	switch {
	case table == tableNAT:
		chain.Type, chain.Priority = nftables.ChainTypeNAT, nftables.ChainPriorityNATDest
	case table == tableRaw:
		chain.Type, chain.Priority = nftables.ChainTypeFilter, nftables.ChainPriorityRaw
	case name == chainOutput: // a changed mark changes the route
		chain.Type, chain.Priority = nftables.ChainTypeRoute, nftables.ChainPriorityMangle
	default:
		chain.Type, chain.Priority = nftables.ChainTypeFilter, nftables.ChainPriorityMangle
	}
	return chain
}

// register is where expressions keep a value. A rule uses one at a time.
const register = 1

// exprs returns a rule as one or two rules of nftables.
func (r Rule) exprs(six bool) [][]expr.Any {
	m := r.match.exprs()
	switch a := r.action; a.kind {
	case doTProxy:
		// TPROXY of iptables drops what has no listener; tproxy of nftables does not match then.
		drop := append(r.match.exprs(), &expr.Verdict{Kind: expr.VerdictDrop})
		return [][]expr.Any{append(m,
			value(binary.BigEndian.AppendUint16(nil, a.port)),
			&expr.TProxy{Family: byte(nftFamily(six)), RegPort: register},
			value(native32(a.value)), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register},
			&expr.Verdict{Kind: expr.VerdictAccept}), drop}
	case doLog:
		return [][]expr.Any{append(m, &expr.Log{
			Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN,
			Group: logGroup, Snaplen: logSize, Data: []byte(a.text),
		})}
	default:
		return [][]expr.Any{append(m, a.exprs(r.table)...)}
	}
}

func (a action) exprs(table string) []expr.Any {
	switch a.kind {
	case doAccept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	case doDrop:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	case doJump:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: nftChain(table, a.chain)}}
	case doRedirect:
		return []expr.Any{
			value(binary.BigEndian.AppendUint16(nil, a.port)),
			&expr.Redir{RegisterProtoMin: register, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
		}
	case doMark:
		return []expr.Any{value(native32(a.value)), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register}}
	case doSaveMark:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: register},
		}
	case doRestoreMark:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: register},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register},
		}
	case doZone:
		return []expr.Any{
			value(binary.NativeEndian.AppendUint16(nil, uint16(a.value))),
			&expr.Ct{Key: expr.CtKeyZONE, SourceRegister: true, Register: register},
		}
	default:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	}
}

func value(data []byte) expr.Any { return &expr.Immediate{Register: register, Data: data} }
func native32(n uint32) []byte   { return binary.NativeEndian.AppendUint32(nil, n) }
func compare(not bool, data []byte) expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register, Data: data}
}

func (m match) exprs() (out []expr.Any) {
	meta := func(key expr.MetaKey, not bool, data []byte) {
		out = append(out, &expr.Meta{Key: key, Register: register}, compare(not, data))
	}
	port := func(offset uint32, not bool, ports ...uint16) {
		out = append(out, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
		for _, p := range ports {
			out = append(out, compare(not, binary.BigEndian.AppendUint16(nil, p)))
		}
	}
	switch m.proto {
	case protoTCP:
		meta(expr.MetaKeyL4PROTO, false, []byte{unix.IPPROTO_TCP})
	case protoUDP:
		meta(expr.MetaKeyL4PROTO, false, []byte{unix.IPPROTO_UDP})
	}
	if m.in != "" {
		meta(expr.MetaKeyIIFNAME, false, interfaceName(m.in))
	}
	if m.out != "" {
		meta(expr.MetaKeyOIFNAME, false, interfaceName(m.out))
	}
	out = append(out, address(m.src, 12, 8, false)...)
	out = append(out, address(m.dst, 16, 24, m.notDst)...)
	if m.sport != 0 {
		port(0, false, m.sport)
	}
	if m.dport != 0 {
		port(2, false, m.dport)
	}
	if len(m.notDports) > 0 {
		port(2, true, m.notDports...)
	}
	if len(m.ids) > 0 {
		key := expr.MetaKeySKUID
		if m.owner == ownerGroup {
			key = expr.MetaKeySKGID
		}
		out = append(out, &expr.Meta{Key: key, Register: register})
		for _, id := range m.ids {
			out = append(out, compare(m.notOwner, native32(id)))
		}
	}
	if m.state != "" {
		bits := expr.CtStateBitINVALID
		if m.state == stateEstablished {
			bits = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
		}
		out = append(out, &expr.Ct{Key: expr.CtKeySTATE, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: native32(bits), Xor: make([]byte, 4)},
			compare(true, make([]byte, 4)))
	}
	if m.mark != 0 {
		meta(expr.MetaKeyMARK, m.notMark, native32(m.mark))
	}
	if m.connMark != 0 {
		out = append(out, &expr.Ct{Key: expr.CtKeyMARK, Register: register}, compare(false, native32(m.connMark)))
	}
	return out
}

// interfaceName returns what an interface is compared with: its name with all bytes, or the
// beginning of the name.
func interfaceName(name string) []byte {
	if prefix, open := strings.CutSuffix(name, "+"); open {
		return []byte(prefix)
	}
	full := make([]byte, unix.IFNAMSIZ)
	copy(full, name)
	return full
}

// address matches a source or destination, which is at one of two offsets of the header.
func address(p netip.Prefix, offset4, offset6 uint32, not bool) []expr.Any {
	if p == (netip.Prefix{}) {
		return nil
	}
	data, offset := p.Masked().Addr().AsSlice(), offset4
	if p.Addr().Is6() {
		offset = offset6
	}
	size := uint32(len(data))
	out := []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}}
	if p.Bits() < p.Addr().BitLen() {
		mask := make([]byte, size)
		for i := range p.Bits() {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		out = append(out, &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: size, Mask: mask, Xor: make([]byte, size)})
	}
	return append(out, compare(not, data))
}
