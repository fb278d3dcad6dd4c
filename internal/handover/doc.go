// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package handover passes listening sockets to the program that replaces this one in the same
// process, by exec. Connections and datagrams that arrive in between wait in the sockets.
//
// The agent uses it. A program finds the sockets by their addresses, so two versions need no common
// format. The package runs no goroutines.
package handover
