// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command bench measures the programs of this repository and prints one
// table: what they take, what the same work takes without them, the ratio of
// the two, and the target. `make bench` builds the programs and runs it;
// docs/operations/performance.md says what each figure means.
//
// It starts the real programs and a real Envoy as processes of their own, on
// addresses in 127.9.0.0/16 and in a temporary directory, and ends and removes
// all of it, also on Ctrl-C. The proxies that connect to the control plane are this
// program.
//
// main.go lists the parts of the table. A part is a function that starts what it
// measures, adds its rows, and ends with check, must or fail if something goes
// wrong (part.go). What the programs are compared with is this program as well, as
// a process of its own: so that its CPU time can be measured, and that what is
// handed over takes a wake-up by the kernel, as in a mesh. floor.go is the control
// plane that only sends bytes or encodes what it has, copy.go copies bytes between
// two sockets, dns.go has the DNS server that knows one answer.
package main
