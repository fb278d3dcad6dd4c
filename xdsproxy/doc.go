// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package xdsproxy relays Envoy's ADS streams to the control plane.
//
// A [Proxy] serves state-of-the-world and delta ADS on a Unix socket. Each downstream
// stream has one upstream stream, on a separate connection; frames are forwarded as the
// bytes that gRPC received. A shallow reader extracts only type, version, nonce and
// Envoy's error. A newer stream of a process ends its older one; during a hot restart
// two processes have one each.
//
// A [Consumer] receives a type that is for the agent itself, and a [Rewriter] changes the
// responses of a type; it is called again for resources that it could not use. Health
// reports and the questions of the [Debug] port are sent on Envoy's stream. Types that
// Envoy does not support are not forwarded.
//
// Package agent creates and runs it. While the control plane is unavailable, the
// downstream stream stays open and Envoy keeps its configuration; the agent dials again
// with jittered back-off. An Envoy without configuration is served by [LastGood]
// meanwhile. The package stores and creates no configuration.
//
// Goroutines: Run serves gRPC; each downstream stream has three, one for each
// direction and one for messages of the agent, one for each type that has been
// rewritten, and two while it is served by LastGood. All end with the stream.
package xdsproxy
