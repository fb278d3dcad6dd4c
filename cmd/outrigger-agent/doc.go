// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-agent is the node agent: the process beside an application
// that runs its Envoy. It takes the place of pilot-agent: arguments,
// environment, files, sockets and ports are the same.
//
// This package holds the program: main, flags, environment, and the commands that
// only ask (wait, request, version). Package agent runs the agent.
package main
