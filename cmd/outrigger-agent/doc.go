// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-agent is the node agent: the process beside an application
// that runs its Envoy. It replaces pilot-agent: arguments, environment, files,
// sockets and ports are the same.
//
// This package contains the program: main, flags, environment, and the client
// commands wait, request and version. Package agent runs the agent.
package main
