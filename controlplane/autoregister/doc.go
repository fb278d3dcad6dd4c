// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package autoregister maintains the WorkloadEntry objects of machines that register with a
// WorkloadGroup. An entry is created when its proxy connects and removed some time after the proxy
// has disconnected.
//
// Discovery calls a [Controller] when a proxy connects and when its stream ends; the config store
// notifies it of changes to groups and entries. For each entry, the controller compares the
// connections of this replica with the stored entry and writes the difference. It handles its own
// writes like those of other replicas, so that the result does not depend on who wrote, in which
// order, or how often a write was repeated.
//
// Names and annotations are those of Istio. The replica that serves the stream of a proxy writes
// its own name into the entry; the last writer owns the entry. A replica that finds an entry
// marked as disconnected while its proxy is connected there reclaims the entry at once. The mark
// therefore also serves to ask all replicas whether they serve the proxy, which detects the
// entries of a crashed replica. The times in the annotations are informational: each replica
// measures durations itself, so that clocks may differ and jump. Each write and removal is
// conditional on the version of the entry that it is based on.
//
// [Index] returns the labels of a proxy from its entry.
package autoregister
