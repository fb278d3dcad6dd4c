// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package probe checks the health of an application like the kubelet: over HTTP, with a TCP
// connection, with gRPC's health protocol, or by running a command.
//
// The status server uses it for application probes that the mesh has redirected to the agent, and
// status/health for the readiness of an application on a machine. Each call opens its own
// connections, keeps none unless configured, and returns when it has a response or ctx is done. The
// package does not know the server's paths or configuration, does not retry, and ignores the proxy
// settings of the environment.
//
// Goroutines: none that outlive a call, except those of connections that are kept.
package probe
