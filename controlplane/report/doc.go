// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package report is what a control plane reports about its proxies and
// objects: the JSON of /debug/proxies and /debug/explain, which discovery
// writes and "outrigger status" and "outrigger explain" read. Each replica
// speaks of the proxies that are connected to it; [Merge] joins what several
// say of one object. The package does no I/O and runs no goroutine.
package report
