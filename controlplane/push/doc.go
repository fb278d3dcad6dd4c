// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package push schedules builds of snapshots and pushes to connections.
//
// A [Debouncer] merges a stream of changes into builds: the first change after a
// quiet time is built at once, a burst is merged. A [Queue] passes the connections
// that wait for a push to a few workers, first come, first served.
//
// The package does not depend on gRPC or on configuration. Goroutines: each Run owns
// its goroutines and ends them with its context.
package push
