// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package snapshot turns the user objects of a mesh into one immutable value for the generators:
// the services and endpoints, the VirtualService, DestinationRule, PeerAuthentication and Sidecar
// of each proxy, and the problems of the objects.
//
// The event loop of the control plane calls [Build] with the previous snapshot and the change. An
// index whose content did not change keeps its pointer, and so do the services, endpoint sets and
// rules in it; the generators compare these pointers to detect changes. The package does no I/O,
// reads no clock and runs no goroutines.
package snapshot
