// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package connlimit bounds what connections cost a server.
//
// It owns a net.Listener that limits connections in total, for each source address
// and by rate, and that closes connections which nobody uses or reads. HTTP and
// gRPC servers tell it which connections are in use. All servers of the agent and
// of the control plane listen through it. It logs nothing: a connection that is
// refused is counted by a callback. It starts no goroutines; each connection has
// a timer at most.
package connlimit
