// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package dns

import "net"

// controlSize is for Linux: elsewhere the system chooses the answer's source.
func controlSize(*net.UDPConn) int { return 0 }
