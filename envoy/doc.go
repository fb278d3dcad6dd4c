// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoy owns the one Envoy that the agent runs: its version, its
// command line, its process and its admin port.
//
// The agent's wiring calls it: CheckVersion and Args before the start,
// Process.Run for as long as Envoy lives, Admin for readiness and draining.
// Draining belongs to Run: when its context ends, Envoy's listeners drain,
// then Envoy gets SIGTERM and, if it does not obey, SIGKILL. Envoy never
// outlives the agent: the kernel kills it when the agent dies.
//
// The package never writes a bootstrap, never restarts Envoy and never decides
// what a crash means for the agent: Run returns an *ExitError and the caller
// decides.
//
// Goroutines: one while Run runs. It is locked to its thread, starts Envoy and
// waits for it.
package envoy
