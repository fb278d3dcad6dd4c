// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package xdsproxy relays Envoy's ADS streams to the control plane.
//
// A [Proxy] serves state-of-the-world and delta ADS on a Unix socket. One
// downstream stream has one upstream stream, on a connection of its own; the
// frames pass as the bytes that gRPC received, they are never decoded. Only
// requests, which are small, are looked at with a shallow reader, so that
// what Envoy rejects stands in the log. A newer stream of a process ends its
// older one; during a hot restart two processes have one each.
//
// The agent's main function creates and runs it. While the control plane is
// away the downstream stream stays open and waits: Envoy keeps what it has,
// and the agent alone decides, with jittered back-off, when to dial again.
// The package keeps no configuration and makes none.
//
// Goroutines: Run serves gRPC; each downstream stream has two, one for each
// direction, which end with the stream.
package xdsproxy
