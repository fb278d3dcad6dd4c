// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package deep lets a real Envoy validate configurations: those that the proxies of a mesh of files
// would have, and others. The commands of the tool call it. It runs Envoy with --mode validate only,
// and starts no goroutines. Scripts do not run; a caller removes them with [xds.WithoutScripts].
package deep
