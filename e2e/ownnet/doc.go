// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ownnet runs the tests of a package in their own network namespace.
//
// Tests that run the real Envoy, the agent or a whole mesh listen on fixed loopback addresses and
// ports, such as 127.1.0.2:15020, because these are part of what they test. Two such tests on one
// machine, of two packages, of two clones or beside a running mesh, would conflict on ports or,
// worse, receive each other's responses: Envoy shares its ports. In its own namespace, a test
// process has all loopback addresses to itself, and also all abstract Unix sockets.
//
// If the system does not allow network namespaces, the test processes on one machine that use this
// package run one after the other.
//
// TestMain calls [Tests]. The package is for tests only and runs no goroutines except one that
// forwards signals.
package ownnet
