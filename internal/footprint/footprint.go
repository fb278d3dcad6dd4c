// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"context"
	"runtime/debug"
	"time"
)

// GiveBack returns to the system what the start left free, and what of the program
// only the start needed, after each of the pauses, until ctx is done. Go would do
// so by and by, or never in a program that allocates next to nothing.
func GiveBack(ctx context.Context, pauses ...time.Duration) {
	for _, pause := range pauses {
		t := time.NewTimer(pause)
		// Cases: the end; the pause is over.
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			debug.FreeOSMemory()
			_ = forgetProgram() // without it there is only more memory in use
		}
	}
}
