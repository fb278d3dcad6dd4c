// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package wasm downloads the WebAssembly modules to which extension configurations refer, caches
// them in a directory, and rewrites the configurations so that Envoy loads the local files.
//
// The relay passes every ECDS response to [Cache.RewriteResponse]. Resources are converted
// concurrently. A resource whose module is unavailable does not delay the others: it is replaced or
// omitted, and reported in the result. Messages are edited field by field in their wire format, so
// that unknown fields are preserved.
//
// Modules are loaded over http, https and oci, or from files. URLs cannot refer to loopback,
// link-local or metadata addresses unless the configuration allows it; the check applies to the
// address that is dialled. The package never runs a module and never holds a complete one in
// memory.
//
// Goroutines: Run removes unused modules; each download has one, which ends with its deadline or
// with Run.
package wasm
