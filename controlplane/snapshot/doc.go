// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package snapshot turns the user objects of a mesh into one immutable value
// that answers every question of the generators: which services and endpoints
// there are, which VirtualService, DestinationRule, PeerAuthentication and
// Sidecar apply to whom, and what is wrong with the objects.
//
// The event loop of the control plane calls [Build] with the previous snapshot
// and what changed. An index whose content did not change is the same pointer
// as before, and so are the single services, endpoint sets and rules inside
// it: pointers are the version stamps that the generators compare. The
// package does no I/O, reads no clock and runs no goroutine.
package snapshot
