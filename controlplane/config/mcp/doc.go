// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package mcp takes configuration objects from another control plane, over the
// Mesh Configuration Protocol: ADS whose types are group/version/Kind and whose
// resources are istio.mcp.v1alpha1.Resource.
//
// [Driver] makes the store of a URL; outrigger-control gives it to
// [config.Open]. [Encode] and [SchemaOf] are the same protocol seen from the
// server, which is in package discovery.
//
// The package takes no writes. It never takes an object out of force because
// its new version is bad, because the server is away or because it starts again:
// only an answer of the server that leaves an object out, or says that it is
// gone, removes it.
//
// Run keeps two goroutines: one holds the stream, applies what comes and opens
// the next one; the other calls the handlers. Each stream has a third, which
// receives.
package mcp
