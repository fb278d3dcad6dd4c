// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command bench measures the programs of this repository and prints one table: their costs, the
// costs of the same work without them, the ratio, and the target. `make bench` builds the programs
// and runs it; docs/operations/performance.md explains the figures.
//
// It starts the real programs and a real Envoy as separate processes, on addresses in 127.9.0.0/16
// and in a temporary directory, and cleans up at the end, also on Ctrl-C. The proxies that connect
// to the control plane are simulated by this program.
//
// main.go lists the parts of the table. A part is a function that starts what it measures, adds
// rows, and terminates with check, must or fail on errors (part.go). The programs are compared with
// helpers, which are this program in a separate process: so their CPU time can be measured, and
// data passes through the kernel with a wake-up, as in a mesh. floor.go is a control plane that
// only sends bytes or encodes what it has, copy.go copies bytes between two sockets, and dns.go
// contains the DNS server with a single answer.
package main
