// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package dns is the agent's local DNS server: names of the mesh are answered
// from the name table that the control plane sends, all others by the servers
// of resolv.conf, which is read again when it changes.
//
// The agent's main function binds its sockets, creates and runs it; the relay
// passes each name table to [Server.Update]. A table becomes an immutable lookup
// behind an atomic pointer, and an answer from it is written straight into the
// buffer that is sent: nothing is allocated for it, however large the table
// is. Messages of upstream servers are read and written by miekg/dns.
//
// What upstream answered last is kept, within bounds, for the time in which
// upstream does not answer; it is used for nothing else, so there is no cache
// that could be out of date while upstream is well. The server never resolves
// recursively, never changes its table by itself and never asks itself.
//
// Goroutines: Run has one for each UDP socket, which answers from the table by
// itself, one for each TCP listener and connection, one that looks at
// resolv.conf, and up to maxForwards queries at upstream, each with one for
// each attempt. All end with Run.
package dns
