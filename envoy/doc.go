// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoy manages the Envoy process that the agent runs: its version, command line, process
// and admin port. There are two processes only while a new Envoy takes over from the old one in a
// hot restart.
//
// The caller runs CheckVersion and Args before the start, Process.Run for the lifetime of Envoy,
// Ready for readiness checks, and Drain to drain Envoy before shutdown. When the context of Run is
// done, Run drains Envoy's listeners unless they are already drained, sends SIGTERM, and sends
// SIGKILL if Envoy does not exit in time. Run restarts a crashed Envoy within the budget of
// Restart. With HotRestart, a new Envoy takes over on request or when the binary changes. Envoy
// never outlives the agent: the kernel kills it when the agent dies.
//
// The package never writes a bootstrap and does not decide how the agent handles a crash beyond the
// budget: Run returns an *ExitError and the caller decides.
//
// Goroutines: Run has one for each Envoy, locked to its thread, which starts the process and waits
// for it. With HotRestart it has one more that watches the binary, and one during a takeover or
// while the old Envoy is shutting down. Ready has one for the duration of the call.
package envoy
