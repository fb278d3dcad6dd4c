// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package health stores the health that agents report for their applications, and determines which
// WorkloadEntry objects are out of service as a result.
//
// Discovery calls a [Table] with each report and at the end of each stream. The event loop of the
// control plane passes it the objects and applies its verdicts to the next snapshot. A proxy can
// only affect entries with its own namespace and service account. An entry without a report is
// healthy. A verdict survives the stream that reported it; it ends when the entry is removed or no
// longer belongs to the proxy.
//
// The writer of object status requests the verdicts. The health in a stored status applies as long
// as no agent has reported to this replica: after a restart, and if the agent is connected to
// another replica.
//
// The package does no I/O and starts no goroutines.
package health
