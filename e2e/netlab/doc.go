// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package netlab creates network namespaces that simulate machines. Each has an interface with an
// IPv4 and an IPv6 address on a common bridge, and can redirect its traffic to its Envoy like a
// pod. It requires root. The caller closes the machines; connections and listeners in them remain
// open. It runs no goroutines beyond its calls.
package netlab
