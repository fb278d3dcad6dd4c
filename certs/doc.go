// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package certs creates and parses keys, certificate requests, certificate chains and the SPIFFE
// identities in them.
//
// Both sides of the mesh use it for identities: the agent when it requests a certificate (sds) and
// the control plane when it issues one or authenticates a caller (controlplane/ca,
// controlplane/authn).
//
// The package is pure: it does no I/O, keeps no state, depends on neither gRPC nor Envoy and runs
// no goroutines. Its errors never contain key material.
package certs
