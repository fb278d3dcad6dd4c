// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package node defines the data that agent and control plane exchange in Envoy's xDS node: the node
// id and the node metadata.
//
// The agent renders both into Envoy's bootstrap; the control plane parses both from the first
// request of a stream. The formats are Istio's, including their peculiarities: booleans are
// strings, lists are comma-separated strings, and the ports of a pod are JSON inside a string.
// Parsing is more lenient than rendering and also accepts the natural JSON types.
//
// The package is pure and any program can import it: no I/O, no goroutines, no protobuf.
package node
