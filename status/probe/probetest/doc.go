// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package probetest generates a load of many probes and reports the resources that a process holds.
// Only tests and benchmarks use it.
//
// Goroutines: Run has one for each concurrent probe, and returns when they have ended.
package probetest
