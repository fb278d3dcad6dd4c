// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package generate builds the xDS resources of a proxy from a snapshot of the mesh: clusters,
// endpoints, listeners and routes for a stock Envoy.
//
// The streams of the control plane call [Generator.Generate]. Its result is a pure function of the
// snapshot and the proxy, serialized deterministically. The Generator caches results, so that
// proxies with the same view of the mesh share one build. A change rebuilds only what depends on
// it; a resource whose bytes did not change remains the same pointer. The package blocks only on a
// build that is already in progress. It does no I/O and starts no goroutines.
//
// Envoys that use the delta protocol receive virtual hosts as separate resources (VHDS). Other
// proxies receive the same virtual hosts inside their routes.
//
// The package serves sidecars, gateways and proxyless gRPC clients. All other proxies receive
// empty sets. Every proxy receives the trust bundle of the mesh. A snapshot contains no secrets:
// the streams call [KeyPair] and [Roots] for each of them.
package generate
