// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"net"

	"golang.org/x/sys/unix"
)

// controlSize has the system tell with each request which address it was sent
// to, if the socket has more than one: the same octets, sent with the answer,
// make that its source. It returns how many they are at most, 0 for none.
func controlSize(conn *net.UDPConn) int {
	const enough = 64
	address, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok || !address.IP.IsUnspecified() {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0 // the socket is closed, as its next use will say
	}
	size := 0
	err = raw.Control(func(fd uintptr) {
		// A socket for IPv6 has IPv4 addresses in the form of IPv6.
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1) == nil ||
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) == nil {
			size = enough
		}
	})
	if err != nil {
		return 0
	}
	return size
}
