// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package discovery serves ADS, state of the world and delta, to the proxies.
//
// A [Server] holds the newest snapshot and the open streams. Each stream has
// one goroutine that owns its subscriptions: what the proxy asked for, what
// it has (names and hashes, not bytes), and what it has not answered yet. A
// push compares hashes and sends what differs; the bytes of a resource are
// marshalled once, by the generator, and shared by all streams.
//
// Rules of the streams: types go out in the order CDS, EDS, LDS, RDS, VHDS, and
// clusters are removed after the routes that named them; at most one response
// of a type waits for its answer, what changes meanwhile merges; routes wait
// while clusters or endpoints are unanswered; a rejected response is not sent
// again until something changes, and its listeners and routes keep their
// clusters. The same holds for a proxy that comes back: what it says it has is
// trusted, save endpoints of clusters that it may be warming.
//
// A change of clusters, listeners, routes or virtual hosts is tried by one proxy
// before the others of its kind get it, and what a proxy rejects is withheld from
// them: see quarantine.
//
// Secrets are no part of a snapshot: a stream wakes when one that its proxy requested
// changes. See secrets.
//
// Questions about the server are answered on the stream that they come on: see debug.
//
// Other control planes receive the objects of a config store instead: see
// mcpserver.
//
// Types that are not served are not answered, as Istio's control plane does it: they
// are logged once for a stream and counted, and nothing is kept of them. An end of
// the stream would take the proxy's other types with it, and would come again and
// again; an answer without resources would have it drop what it has from elsewhere.
//
// A panic while one proxy is served ends nobody else's stream: what cannot be
// generated is not sent, and the proxy keeps what it has until a snapshot comes that
// can. A proxy that is to go to another replica ([Server.Shed]) gets the snapshot
// that it is getting in whole, and no newer one, before its stream ends. A clock that is set stops nothing: times
// are compared by the monotonic clock alone.
//
// The package reads no configuration and builds no snapshot. Goroutines: Run
// owns the push workers; each stream has its handler and a reader, which end
// with the stream.
package discovery
