// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// routing changes addresses and routes of the network namespace.
type routing struct {
	conn     *netlink.Conn
	loopback uint32
}

func openRouting() (*routing, error) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return nil, fmt.Errorf("finding the loopback interface: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return &routing{conn, uint32(lo.Index)}, nil
}

// addRoutes adds what the rules need besides: the address from which Envoy connects to the
// application with IPv6, and with TPROXY the route for packets with the mark. What exists stays.
func addRoutes(s *Settings) error {
	if !s.IPv6 && !s.TProxy {
		return nil
	}
	r, err := openRouting()
	if err != nil {
		return err
	}
	defer func() { _ = r.conn.Close() }() // nothing is lost: every message was acknowledged
	const create = netlink.Create | netlink.Excl
	if s.IPv6 {
		source := netip.MustParseAddr("::6").AsSlice()
		header := []byte{unix.AF_INET6, 128, unix.IFA_F_NODAD, 0}
		err := r.send(unix.RTM_NEWADDR, create, binary.NativeEndian.AppendUint32(header, r.loopback),
			netlink.Attribute{Type: unix.IFA_LOCAL, Data: source}, netlink.Attribute{Type: unix.IFA_ADDRESS, Data: source})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return explain(fmt.Errorf("adding the address ::6 to the loopback interface: %w", err))
		}
	}
	if s.TProxy {
		for _, f := range families(s.IPv6) {
			if err := r.mark(s, f, unix.RTM_NEWRULE, create); err != nil && !errors.Is(err, unix.EEXIST) {
				return explain(fmt.Errorf("adding a routing rule for the mark %d: %w", s.TProxyMark, err))
			}
			if err := r.local(s, f, unix.RTM_NEWROUTE, create); err != nil && !errors.Is(err, unix.EEXIST) {
				return explain(fmt.Errorf("adding a route to table %d: %w", s.RouteTable, err))
			}
		}
	}
	return nil
}

// removeRoutes removes the routes for packets with the mark. The address ::6 stays: it disturbs
// nobody, and Envoy may still use it.
func removeRoutes(s *Settings) error {
	r, err := openRouting()
	if err != nil {
		return err
	}
	defer func() { _ = r.conn.Close() }() // as above
	for _, f := range families(true) {
		if err := r.mark(s, f, unix.RTM_DELRULE, 0); err != nil && !absent(err) {
			return explain(fmt.Errorf("removing the routing rule of the mark %d: %w", s.TProxyMark, err))
		}
		if err := r.local(s, f, unix.RTM_DELROUTE, 0); err != nil && !absent(err) {
			return explain(fmt.Errorf("removing the route of table %d: %w", s.RouteTable, err))
		}
	}
	return nil
}

func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EAFNOSUPPORT)
}

func families(six bool) []byte {
	if six {
		return []byte{unix.AF_INET, unix.AF_INET6}
	}
	return []byte{unix.AF_INET}
}

// mark sends a message about the rule that selects the routing table by the mark.
func (r *routing) mark(s *Settings, family byte, message uint16, flags netlink.HeaderFlags) error {
	header := []byte{family, 0, 0, 0, 0, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0}
	return r.send(message, flags, header,
		netlink.Attribute{Type: unix.FRA_FWMARK, Data: native32(s.TProxyMark)}, netlink.Attribute{Type: unix.FRA_TABLE, Data: native32(s.RouteTable)})
}

// local sends a message about the route in that table: all addresses are local.
func (r *routing) local(s *Settings, family byte, message uint16, flags netlink.HeaderFlags) error {
	header := []byte{family, 0, 0, 0, 0, unix.RTPROT_BOOT, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0}
	return r.send(message, flags, header,
		netlink.Attribute{Type: unix.RTA_OIF, Data: native32(r.loopback)}, netlink.Attribute{Type: unix.RTA_TABLE, Data: native32(s.RouteTable)})
}

// send sends a message and waits for its acknowledgement.
func (r *routing) send(message uint16, flags netlink.HeaderFlags, header []byte, attributes ...netlink.Attribute) error {
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return err
	}
	_, err = r.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(message), Flags: netlink.Request | netlink.Acknowledge | flags},
		Data:   append(header, data...),
	})
	return err
}
