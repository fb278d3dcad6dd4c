// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lastgood keeps what Envoy acknowledged on disk, and what the agent
// took of the types that it asks for itself, and answers from it when an Envoy
// starts while the control plane is away.
//
// The relay hands the frames of each stream to a [Recording], as the buffers
// that gRPC received. What Envoy acknowledges counts once the stream is quiet:
// a state on disk is one that Envoy had, never a mixture. Resources stay on
// disk, memory holds an index. [Store.Serve] is a small ADS server for state
// of the world and delta that answers from the last such state. Envoy's start
// never waits for what is missing there: it gets something empty where that
// does no harm, and else something that it rejects.
//
// Files are sealed with AES-256-GCM under a key that stays on the node.
// Secrets and private keys are kept only where the configuration consents.
// Whatever cannot be used, on disk or of the disk, is refused with a reason:
// the agent goes on without. The package never blocks Envoy's stream.
//
// Goroutines: Run is the one writer. Serve runs on the caller's goroutine and
// has one more, which receives and ends with the stream.
package lastgood
