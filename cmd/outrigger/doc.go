// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger is the command line tool: it runs a mesh on this machine
// (outrigger up), reads and writes its configuration, and asks control planes.
//
// The package contains only flags, the environment (env.go) and wiring: package mesh
// implements outrigger up, tool/objects and tool/inspect the other commands. The
// first SIGINT, SIGTERM or SIGHUP cancels the context of the command, the second one
// stops everything at once. Errors result in exit code 1. The package runs one
// goroutine, which waits for signals.
package main
