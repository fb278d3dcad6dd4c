// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package replicas evens out the load of the replicas of a control plane.
//
// Streams live for days, so a replica that is added gets none of those that are
// there. Each replica therefore asks the others, over HTTP, how many proxies they
// serve ([Balancer] is the handler, too), and one that has clearly more than the
// mean has a few connect again, one after the other; the balancer before the
// replicas, or the name that has all their addresses, brings most of them
// elsewhere. Nothing is stored and nobody decides for others: a replica that
// hears from none keeps all it has.
//
// A replica gives up at most one in twenty of its proxies in a round, never goes
// below the mean, and does nothing while proxies come and go in numbers or
// replicas do: a group of proxies that reconnects is not set in motion again.
//
// controlplane/server runs it if other replicas are configured. It knows
// neither gRPC nor snapshots. Goroutines: Run asks all at once, and waits for
// the answers.
package replicas
