// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"runtime/debug"
	"time"
)

// giveBackAfter is when what the start needed is given back: once it is ready,
// and once many proxies have come.
var giveBackAfter = []time.Duration{2 * time.Second, 30 * time.Second}

// tuneRuntime trades a little CPU for memory: what the control plane holds
// lives long, and what a push allocates dies at once. GOGC wins.
func tuneRuntime(e environment) {
	if e.gogc == "" {
		debug.SetGCPercent(60)
	}
}
