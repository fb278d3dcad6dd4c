// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-agent is the node agent: the process beside an application
// that runs its Envoy. It takes the place of pilot-agent: arguments,
// environment, files, sockets and ports are the same.
//
// This package holds flags (flags.go), environment (env.go), the resolution of
// both into one frozen configuration (config.go), the wiring (agent.go) and the
// commands that only ask (wait.go, request.go, version.go), nothing else. Each
// part of the agent is a package of its own.
package main
