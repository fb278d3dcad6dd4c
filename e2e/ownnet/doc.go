// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ownnet runs the tests of a package in a network namespace of their own.
//
// Tests that run the real Envoy, the agent or a whole mesh listen on loopback
// addresses and ports that are part of what they test, such as 127.1.0.2:15020. Two
// such tests on one machine, of two packages, of two clones or beside a mesh that
// somebody runs, would take each other's ports or, worse, get each other's answers:
// Envoy shares its ports. In a namespace of its own a test process has all loopback
// addresses to itself. Unix sockets with abstract names are its own, too.
//
// Where the system allows no network namespaces, the test processes of one machine
// that use this package run one after the other.
//
// TestMain calls [Tests]. The package is for tests alone and runs no goroutines but
// one that hands on signals.
package ownnet
