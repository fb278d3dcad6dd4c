// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package xdsproxy relays Envoy's ADS streams to the control plane.
//
// A [Proxy] serves state-of-the-world and delta ADS on a Unix socket. One
// downstream stream has one upstream stream, on a connection of its own; the
// frames pass as the bytes that gRPC received. A shallow reader takes type,
// version, nonce and Envoy's complaint from them and decodes nothing. A newer
// stream of a process ends its older one; during a hot restart two processes
// have one each.
//
// What the agent takes itself is in a table of [Consumer], what it changes
// in one of [Rewriter], which is asked again for what it could not use; reports
// of health and the questions of the [Debug] port go the same way as Envoy's
// requests. Types that Envoy cannot know stop here.
//
// The agent's main function creates and runs it. While the control plane is
// away the downstream stream stays open and waits: Envoy keeps what it has,
// and the agent alone decides, with jittered back-off, when to dial again. An
// Envoy that has nothing is served by [LastGood] meanwhile. The package keeps
// no configuration and makes none.
//
// Goroutines: Run serves gRPC; each downstream stream has three, one for each
// direction and one for what the agent says, one for each type that has been
// rewritten, and two while it is served by LastGood. All end with the stream.
package xdsproxy
