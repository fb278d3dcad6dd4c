// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoytest finds and runs the Envoy of tests.
//
// It owns the processes that Start runs, and starts no goroutine. Tests of any package call it.
package envoytest
