// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package probe

import (
	"context"
	"syscall"
)

// ipBindAddressNoPort is IP_BIND_ADDRESS_NO_PORT of linux/in.h.
const ipBindAddressNoPort = 24

// bindLate has the kernel choose the port when the target is known. Else a port
// of the source address would be taken for as long as any connection from it
// lingers, to whomever, and many probes would find none left.
func bindLate(_ context.Context, _, _ string, conn syscall.RawConn) error {
	return conn.Control(func(fd uintptr) {
		// A kernel that cannot do it only runs out of ports sooner.
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, ipBindAddressNoPort, 1)
	})
}
