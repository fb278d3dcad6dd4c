// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package netlab makes network namespaces that stand for machines: each has an
// interface with an IPv4 and an IPv6 address on one bridge, and may redirect its
// traffic to its Envoy as a pod does. It needs root. The caller closes the machines;
// what it opened in them stays open. It runs no goroutines beyond its calls.
package netlab
