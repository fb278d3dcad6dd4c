// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"syscall"
)

// ipBindAddressNoPort is IP_BIND_ADDRESS_NO_PORT from linux/in.h.
const ipBindAddressNoPort = 24

// bindLate makes the kernel choose the local port when the target is known. Otherwise a port of the
// source address is in use while any connection from it is in TIME_WAIT, whatever its target, and
// frequent probes exhaust the ports.
func bindLate(_ context.Context, _, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// A kernel without support exhausts the ports sooner.
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, ipBindAddressNoPort, 1)
	})
}
