// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package bootstrap renders the configuration that Envoy starts with: who it
// is (node), where its configuration comes from (ADS over the agent's
// socket), where its secrets come from (SDS), the admin port, and the two
// listeners that answer before any configuration has arrived (metrics and
// readiness).
//
// The agent calls NodeMetadata and Render, or RenderTemplate with a template
// of the user's own, once, before it starts Envoy, and writes the result to a
// file. Everything here is pure: no I/O, no environment, no clock, no
// goroutine; equal inputs give equal bytes. Envoy's own message types are not
// used, for they would double the size of the agent; the tests have the real
// Envoy check every golden file instead.
package bootstrap
