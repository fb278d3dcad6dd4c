// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package certs makes and reads keys, certificate requests, certificate chains
// and the SPIFFE identities in them.
//
// Both sides of the mesh spell identities through this package: the agent when
// it asks for a certificate (sds) and the control plane when it issues one or
// checks who is calling (controlplane/ca, controlplane/authn).
//
// The package is pure: it does no I/O, keeps no state, knows neither gRPC nor
// Envoy and runs no goroutine. Its errors never hold key material.
package certs
