// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package push schedules builds of snapshots.
//
// A [Debouncer] merges a stream of changes into builds: the first change after a quiet time is built
// at once, a burst is merged.
//
// The package does not depend on gRPC or on configuration. Goroutines: Run owns its goroutines and
// ends them with its context.
package push
