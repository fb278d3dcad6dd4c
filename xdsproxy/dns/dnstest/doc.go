// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package dnstest provides a configurable upstream server and a load generator for testing the
// agent's DNS server.
//
// Tests and the benchmark program use it; it is not part of any other program. It contacts only the
// servers that it is given. Goroutines: those of Upstream.Run and of Load.Run end with them.
package dnstest
