// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"context"
	"runtime/debug"
	"time"
)

// GiveBack returns unused memory to the system after each of the pauses, until ctx is done: heap
// that is free after the start, and pages of the executable that only the start needed. The Go
// runtime does this slowly, or never in a program that hardly allocates.
func GiveBack(ctx context.Context, pauses ...time.Duration) {
	for _, pause := range pauses {
		t := time.NewTimer(pause)
		// Events: shutdown; the pause is over.
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			debug.FreeOSMemory()
			_ = forgetProgram() // on failure, the process only uses more memory
		}
	}
}
