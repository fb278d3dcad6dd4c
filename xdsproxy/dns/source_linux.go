// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"net"

	"golang.org/x/sys/unix"
)

// controlSize makes the system report the destination address of each request, if the socket has
// several addresses. Sending the same control data with the answer sets the answer's source
// address. controlSize returns the maximum size of the data in bytes, or 0 for none.
func controlSize(conn *net.UDPConn) int {
	const enough = 64
	address, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok || !address.IP.IsUnspecified() {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0 // the socket is closed, as its next use will report
	}
	size := 0
	err = raw.Control(func(fd uintptr) {
		// An IPv6 socket reports IPv4 addresses in IPv6 form.
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
