// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package health keeps what agents say of the applications on their machines,
// and tells which WorkloadEntry objects are out of service because of it.
//
// Discovery calls a [Table] with each report and with the end of each stream;
// the event loop of the control plane gives it the objects, and takes the
// verdicts into the next snapshot. A proxy speaks only for entries of its own
// namespace and service account. An entry of which nobody spoke is healthy. A
// verdict outlives the stream that brought it; it ends with the entry, or when
// the entry no longer is the one that was spoken of.
//
// Who writes the status of objects asks for the verdicts, and what is in the
// status counts where no agent has spoken to this replica: after a restart, and
// where the agent is connected to another replica.
//
// The package does no I/O and runs no goroutine.
package health
