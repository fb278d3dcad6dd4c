// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package localuser

import "net"

// Peer returns false: it is implemented for Linux only.
func Peer(net.Conn) (pid, uid int, ok bool) { return 0, 0, false }
