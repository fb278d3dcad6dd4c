// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lastgood keeps the configuration that Envoy acknowledged in a file, and
// serves it when an Envoy starts while the control plane is away. It also keeps
// the types that the agent asks for itself, and the identity of the workload.
//
// The relay passes the frames of each stream to a [Recording], as the buffers
// that gRPC received. What changes waits in a temporary file without a name.
// Once Envoy has acknowledged everything and the stream is quiet, the store
// merges the changes with its snapshot into a new snapshot and replaces the old
// one: a snapshot is a state that Envoy had as a whole. Memory holds digests of
// the resources, no contents.
//
// [Store.Serve] is an ADS server for state of the world and delta that answers
// from the snapshot. Envoy's start never waits for a missing resource: Envoy
// gets an empty one where that does no harm, else one that it rejects.
//
// Files are sealed with AES-256-GCM by a key that stays on the node. Secrets and
// private keys are kept with consent only. A file that cannot be used is refused
// with a reason, and the agent continues without it. The package never blocks
// Envoy's stream.
//
// Goroutines: Run is the only writer. Serve runs on the caller's goroutine and
// has one more, which receives and ends with the stream.
package lastgood
