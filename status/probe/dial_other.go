// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package probe

import (
	"context"
	"syscall"
)

// bindLate is supported on Linux only. Elsewhere, the port is chosen together with the address.
func bindLate(context.Context, string, string, syscall.RawConn) error { return nil }
