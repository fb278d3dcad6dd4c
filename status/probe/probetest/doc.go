// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package probetest makes the load of many probes and tells what a process holds
// meanwhile. Tests and measurements call it; no program does.
//
// Goroutines: Run has one for each probe that may be on its way at the same time,
// and returns when they have ended.
package probetest
