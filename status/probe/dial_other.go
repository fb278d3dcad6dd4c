// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package probe

import (
	"context"
	"syscall"
)

// bindLate is for Linux: elsewhere the port is chosen with the address.
func bindLate(context.Context, string, string, syscall.RawConn) error { return nil }
