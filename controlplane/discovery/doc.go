// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package discovery serves ADS, state of the world and delta, to the proxies.
//
// A [Server] has the newest snapshot and the open streams. Each stream has one
// goroutine that owns its subscriptions: what the proxy asked for, what it has
// (names and hashes, not bytes), and what it has not answered yet. A push compares
// hashes and sends the difference. The generator marshals each resource once, and
// all streams share the bytes.
//
// Rules of the streams:
//
//   - Types are sent in the order CDS, EDS, LDS, RDS, VHDS. Clusters are removed
//     after the routes that named them.
//   - At most one response of a type is unanswered. Changes in the meantime are
//     merged.
//   - Routes wait until clusters and endpoints are answered.
//   - A rejected response is not sent again until something changes, and the clusters
//     of the proxy's listeners and routes are kept.
//   - The versions that a reconnecting proxy claims to have are trusted, except for
//     endpoints of clusters that it may be warming.
//
// A change of clusters, listeners, routes or virtual hosts is sent to one proxy of a
// group first, and what a proxy rejects is withheld from the others: see quarantine.
//
// Secrets are not part of a snapshot: a stream wakes up when a secret that its proxy
// requested changes. See secrets.
//
// Debug questions are answered on the stream on which they arrive: see debug.
//
// Other control planes receive the objects of a config store instead: see
// mcpserver.
//
// Types that are not served are not answered, as in Istio's control plane: they are
// logged once for a stream and counted. Ending the stream would affect the proxy's
// other types, and an empty response would make the proxy drop resources that it has
// from another server.
//
// A panic while one proxy is served does not affect other streams: what cannot be
// generated is not sent, and the proxy keeps its version until a later snapshot can be
// generated. A proxy that is to move to another replica ([Server.Shed]) receives the
// rest of its current snapshot, and no newer one, before its stream ends. Times are
// compared by the monotonic clock only, so setting the clock has no effect.
//
// The package reads no configuration and builds no snapshot. Goroutines: Run
// owns the push workers; each stream has its handler and a reader, which end
// with the stream.
package discovery
