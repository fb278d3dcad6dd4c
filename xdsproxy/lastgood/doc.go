// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lastgood stores the configuration that Envoy has acknowledged in a file, and serves it
// when an Envoy starts while the control plane is unavailable. It also stores the types that the
// agent itself requests, and the identity of the workload.
//
// The relay passes the frames of each stream to a [Recording], in the buffers that gRPC received.
// Changes are collected in an unnamed temporary file. Once Envoy has acknowledged everything and
// the stream is quiet, the store merges the changes with its snapshot and replaces it. Therefore a
// snapshot is a complete state that Envoy has had. Memory contains only digests of the resources,
// not their contents.
//
// [Store.Serve] is an ADS server for state of the world and delta that answers from the snapshot.
// Envoy's start never waits for a missing resource: Envoy receives an empty one if that is
// harmless, and otherwise one that it rejects.
//
// Files are sealed with AES-256-GCM and a key that stays on the node. Secrets and private keys are
// stored only with consent. An unusable file is rejected with a reason, and the agent continues
// without it. The package never blocks Envoy's stream.
//
// Goroutines: Run is the only writer. Serve runs on the caller's goroutine and has another one,
// which receives requests and ends with the stream.
package lastgood
