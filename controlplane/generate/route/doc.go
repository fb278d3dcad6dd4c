// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package route makes Envoy's HTTP routes from VirtualServices, for sidecars
// and gateways alike: what a request must look like, and what becomes of it.
//
// A [Builder] is a proxy in a snapshot. It blocks on nothing, does no I/O and
// returns the same routes for the same input. A rule that Envoy would refuse
// answers 503 in its place and is a problem of its object; it never spoils
// another rule.
package route
