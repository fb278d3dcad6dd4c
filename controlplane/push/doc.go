// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package push carries a change from where it was noticed to the connections
// that must hear of it.
//
// A [Debouncer] turns a stream of changes into builds: the first change after
// a quiet time goes through at once, a burst is gathered. A [Queue] hands the
// connections that wait for a push to a few workers, first come first served.
//
// The package knows no gRPC and no configuration. Goroutines: each Run owns its own and ends them with its context.
package push
