// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package debug answers questions about the control plane: how far proxies are, what
// they receive, what became of an object, and which objects are behind a resource.
//
// Questions come on ADS streams, as types that begin with istio.io/debug, and over
// HTTP under /debug. Callers of the root namespace see all of the mesh, others their
// own namespace. No answer holds a key.
//
// A [Server] asks a [Source], which is controlplane/discovery, and changes nothing. The
// package keeps only answers of the last seconds, for others that watch, and runs no goroutines.
package debug
