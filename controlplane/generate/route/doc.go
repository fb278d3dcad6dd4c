// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package route builds Envoy's HTTP routes from VirtualServices for sidecars and gateways: what a
// request must match, and how it is handled.
//
// A [Builder] builds the routes of a proxy in a snapshot. It does not block and does no I/O, and
// it returns the same routes for the same input. A rule that Envoy would reject is replaced by a
// 503 response and reported as a problem of its object; it never affects other rules.
package route
