// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package generate makes the xDS resources of a proxy from a snapshot of the
// mesh: clusters, endpoints, listeners and routes for a stock Envoy.
//
// The streams of the control plane call [Generator.Generate]. What it gives is
// a pure function of the snapshot and the proxy, in deterministic bytes; the
// Generator only remembers results, so that proxies that see the same mesh
// share one build and a change rebuilds what depends on it: a resource whose
// bytes did not change is the same pointer as before. The package never
// blocks on anything but a build that is already under way, does no I/O and
// runs no goroutine.
//
// Proxies with VHDS, which are Envoys that speak delta, get virtual hosts as
// resources of their own, others the same ones inside their routes.
//
// Served are sidecars, gateways, and clients of gRPC that are no Envoy; every
// other proxy gets empty sets. The bundle of the mesh is for all. Secrets are no part of a snapshot:
// the streams ask [KeyPair] and [Roots] for one at a time.
package generate
