// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package bootstrap renders the configuration that Envoy starts with: its identity (node), the
// source of its configuration (ADS over the agent's socket), the source of its secrets (SDS), the
// admin port, and the two listeners that work before any configuration has arrived (metrics and
// readiness).
//
// The agent calls NodeMetadata and Render, or RenderTemplate with a user's template, once before it
// starts Envoy, and writes the result to a file. The package is pure: it uses no I/O, environment,
// clock or goroutines, and equal inputs result in equal bytes. It does not use Envoy's message
// types, because they would double the size of the agent. Instead, the tests let the real Envoy
// validate every golden file.
package bootstrap
