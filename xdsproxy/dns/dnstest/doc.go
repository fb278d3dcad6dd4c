// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package dnstest has what the agent's DNS server is tried with: an upstream
// server that does what a test wants, and a load that measures.
//
// Tests and the benchmark program use it; no program of the project contains it.
// It never speaks to a server that is not named to it. Goroutines: those of
// Upstream.Run and of Load.Run end with them.
package dnstest
