// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger is the command line tool: it runs a mesh on this machine
// (outrigger up), reads and writes its configuration, and asks control planes.
//
// The package holds flags, the environment (env.go) and wiring only: mesh is
// outrigger up, tool/objects and tool/inspect are the other commands. It turns the
// first SIGINT, SIGTERM or SIGHUP into the end of the context of the command, the
// second one into the end of everything at once, and an error into exit code
// 1. It runs one goroutine, which waits for signals.
package main
