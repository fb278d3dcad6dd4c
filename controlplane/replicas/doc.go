// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package replicas balances proxies among the replicas of a control plane.
//
// Streams last for days, so that a new replica receives none of the existing ones. Each replica
// therefore asks the others over HTTP how many proxies they serve ([Balancer] is also the
// handler). A replica with clearly more than the mean makes a few proxies reconnect, one after the
// other. The load balancer before the replicas, or a DNS name with all their addresses, sends most
// of them to other replicas. Nothing is stored and there is no leader: a replica that receives no
// responses keeps all its proxies.
//
// A replica disconnects at most 5% of its proxies in a round and never falls below the mean. It
// does nothing while the number of proxies or replicas changes substantially, so that proxies that
// are reconnecting are not disconnected again.
//
// controlplane/server runs the balancer if other replicas are configured. The package does not
// depend on gRPC or snapshots. Run starts goroutines that query all replicas at once, and waits
// for them.
package replicas
