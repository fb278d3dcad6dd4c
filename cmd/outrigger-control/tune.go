// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import "runtime/debug"

// tuneRuntime trades a little CPU for memory: what the control plane holds
// lives long, and what a push allocates dies at once. GOGC wins.
func tuneRuntime(e environment) {
	if e.gogc == "" {
		debug.SetGCPercent(60)
	}
}
