// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package gateway makes what an Envoy at the edge of the mesh listens for: the
// servers of the Gateways that select it become listeners, the VirtualServices
// bound to these Gateways their routes.
//
// [Merge] decides which servers share a listener, and which of two that cannot
// is left out; [Merged.Listeners], [Merged.Routes] and [Merged.Passthroughs] make
// the rest of it. Everything is a pure function with the same result for the
// same input. What Envoy would refuse is left out and is a problem of its
// object: it never spoils another server of the port.
package gateway
