// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package localuser

import (
	"net"
	"syscall"
)

// Peer returns the process and the user at the other end of a Unix socket, as the kernel
// noted them when it was connected or listened on. It returns false if it does not know.
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
