// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package probe asks an application whether it is well, as the kubelet would:
// over HTTP, with a TCP connection, with gRPC's health protocol, or by a command.
//
// The status server calls it for application probes whose targets the mesh has
// moved to the agent, status/health for the readiness of a machine's application.
// Each call opens connections of its own, keeps none unless configured, and
// returns once it has an answer or ctx ends. It knows neither the server's paths
// nor its configuration, retries nothing, and uses no proxy of the environment.
//
// Goroutines: none that outlive a call, but those of connections that are kept.
package probe
