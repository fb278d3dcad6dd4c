// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoy owns the one Envoy that the agent runs: its version, its
// command line, its process and its admin port.
//
// The agent's wiring calls it: CheckVersion and Args before the start,
// Process.Run for as long as Envoy lives, Ready for readiness, Drain for a drain
// that comes before the end. When Run's context ends, Envoy's listeners drain,
// unless they have, then Envoy gets SIGTERM and, if it does not obey, SIGKILL.
// An Envoy that crashed is started again within the budget of Restart. Envoy
// never outlives the agent: the kernel kills it when the agent dies.
//
// The package never writes a bootstrap and never decides what a crash beyond
// the budget means for the agent: Run returns an *ExitError and the caller
// decides.
//
// Goroutines: one while Run runs. It is locked to its thread, starts Envoy and
// waits for it. Ready has one more that watches Envoy while its question lasts.
package envoy
