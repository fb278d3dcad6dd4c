// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package node spells the handshake of agent and control plane: the node id
// and the node metadata of Envoy's xDS node.
//
// The agent renders both into Envoy's bootstrap, the control plane parses
// both from the first request of a stream. The shapes are Istio's, oddities
// included: booleans are strings, lists are one string with commas, the ports
// of a pod are JSON inside of a string. Reading is more lenient than writing:
// it also takes the natural JSON type.
//
// The package is pure: no I/O, no goroutine, no protobuf, so that every
// program may import it.
package node
