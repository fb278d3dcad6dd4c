// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package connlimit limits the cost that connections cause to a server.
//
// Its net.Listener limits connections in total, per source address and by rate, and closes
// connections that are unused or whose peer does not read. HTTP and gRPC servers report which
// connections are in use. All servers of the agent and of the control plane listen through it. It
// does not log: a callback counts the connections that a limit closes. It starts no goroutines;
// each connection has at most one timer.
package connlimit
