// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package agent is the node agent put together. It resolves flags, environment,
// annotations and files into settings that do not change (resolve.go), binds the
// sockets (sockets.go), builds the parts (build.go), and runs them until the end
// (parts.go). Each part of the agent is a package of its own.
//
// The program outrigger-agent calls it. Run owns one goroutine for each part. The
// package never reads the environment and never parses a command line.
package agent
