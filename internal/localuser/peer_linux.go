// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localuser

import (
	"net"
	"syscall"
)

// Peer returns the process id and user id of the peer of a Unix socket, as recorded by the kernel
// on connect or listen. ok is false if they are unknown.
func Peer(conn net.Conn) (pid, uid int, ok bool) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, 0, false
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	var cred *syscall.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if controlErr != nil || err != nil {
		return 0, 0, false
	}
	return int(cred.Pid), int(cred.Uid), true
}
