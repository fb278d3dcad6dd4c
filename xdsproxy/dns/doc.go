// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package dns implements the agent's local DNS server. It answers names of the mesh from the name
// table that the control plane sends, and forwards all others to the servers in resolv.conf, which
// it reloads when the file changes.
//
// The agent's main function opens the sockets, creates the server and runs it; the relay passes
// each name table to [Server.Update]. A table is converted to an immutable lookup structure behind
// an atomic pointer. Answers from it are written directly to the send buffer without allocation,
// however large the table is. Messages of upstream servers are parsed and written with miekg/dns.
//
// The server stores upstream's last answers, within limits, and uses them only while upstream does
// not respond. Therefore there is no cache that could be outdated while upstream works. The server
// never resolves recursively, never changes its table by itself and never queries itself.
//
// Goroutines: Run has one for each UDP socket, which answers from the table itself, one for each
// TCP listener and connection, one that watches resolv.conf, and up to maxForwards for queries to
// upstream, each with one per attempt. All end with Run.
package dns
