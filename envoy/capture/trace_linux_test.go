// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Constants from linux/netfilter/nfnetlink_log.h.
const (
	logSubsystem = 4 << 8
	logConfig    = logSubsystem | 1
	logPrefix    = 10 // attribute of a packet
)

// logged returns the prefixes of packets that rules in the pod log, until stop is called.
func (l *lab) logged(t *testing.T) (prefixes <-chan string, stop func()) {
	t.Helper()
	var c *netlink.Conn
	l.do(t, l.pod, func() (err error) {
		c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 1, Data: []byte{1}},                             // bind
		{Type: 2, Data: []byte{0, 0, 0, logSize, 2, 0}},        // copy packets
		{Type: 5, Data: binary.BigEndian.AppendUint32(nil, 1)}, // do not collect them
	})
	if err != nil {
		t.Fatal(err)
	}
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, logGroup)
	if _, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: logConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: append(header, attributes...),
	}); err != nil {
		_ = c.Close()
		t.Skipf("the kernel does not hand out logged packets: %v", err)
	}
	found := make(chan string, 1000)
	go func() {
		defer close(found)
		for {
			messages, err := c.Receive()
			if err != nil {
				return
			}
			for _, m := range messages {
				if len(m.Data) < 4 {
					continue
				}
				all, err := netlink.UnmarshalAttributes(m.Data[4:])
				if err != nil {
					continue
				}
				for _, a := range all {
					if a.Type == logPrefix {
						found <- strings.Trim(string(a.Data), "\x00 ")
					}
				}
			}
		}
	}()
	return found, func() { _ = c.Close() } // nothing is lost
}

// TestTracing checks that packets that match important rules are logged, with nftables and with
// each variant of iptables.
func TestTracing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	check := func(variant string) {
		l.apply(t, usual+"--iptables-trace-logging", "FORCE_IPTABLES_BINARY="+variant)
		prefixes, stop := l.logged(t)
		defer stop()
		want := []string{"JumpOutbound", "JumpInbound", "InboundCapture", "ExcludeInboundPort"}
		for _, p := range []probe{l.out(80), l.in(8080), l.in(15020)} {
			l.reaches(t, p)
		}
		for deadline := time.After(time.Minute); len(want) > 0; {
			select {
			case prefix := <-prefixes:
				want = slices.DeleteFunc(want, func(s string) bool { return s == prefix })
			case <-deadline:
				t.Fatalf("variant %q does not log %q", variant, want)
			}
		}
	}
	check("")
	for _, variant := range installedVariants(t) {
		check(variant)
	}
}
