// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package gateway builds the listeners and routes of an Envoy at the edge of the mesh: the servers
// of the Gateways that select it become listeners, and the VirtualServices bound to these Gateways
// become routes.
//
// [Merge] decides which servers share a listener, and which of two conflicting servers is omitted.
// [Merged.Listeners], [Merged.Routes] and [Merged.Passthroughs] build the resources. All functions
// are pure and deterministic. Configuration that Envoy would reject is omitted and reported as a
// problem of its object; it never affects other servers of the port.
package gateway
