// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package xdsproxy

import "net"

// processOf is for Linux, as hot restarts are.
func processOf(net.Conn) int { return 0 }
