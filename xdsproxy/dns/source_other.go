// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package dns

import "net"

// controlSize is supported on Linux only. Elsewhere, the system chooses the source address of
// answers.
func controlSize(*net.UDPConn) int { return 0 }
