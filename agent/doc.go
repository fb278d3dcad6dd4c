// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package agent assembles the node agent. It resolves flags, environment, annotations
// and files into immutable settings (resolve.go), binds the sockets (sockets.go),
// builds the components (build.go), and runs them (parts.go). Each component is a
// separate package.
//
// The program outrigger-agent calls it. Run owns one goroutine for each component. The
// package never reads the environment and never parses a command line.
package agent
