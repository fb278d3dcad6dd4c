// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoy owns the one Envoy that the agent runs, two while one takes over
// from the other: its version, its command line, its process and its admin port.
//
// The agent's wiring calls it: CheckVersion and Args before the start,
// Process.Run for as long as Envoy lives, Ready for readiness, Drain for a drain
// that comes before the end. When Run's context ends, Envoy's listeners drain,
// unless they have, then Envoy gets SIGTERM and, if it does not obey, SIGKILL.
// An Envoy that crashed is started again within the budget of Restart. With
// HotRestart another one takes over on request, or when the binary is another
// one. Envoy never outlives the agent: the kernel ends it when the agent dies.
//
// The package never writes a bootstrap and never decides what a crash beyond
// the budget means for the agent: Run returns an *ExitError and the caller
// decides.
//
// Goroutines: Run has one for each Envoy, locked to its thread, which starts it
// and waits for it; with HotRestart one that looks at the binary, and one for a
// takeover or for the old Envoy. Ready has one while its question lasts.
package envoy
