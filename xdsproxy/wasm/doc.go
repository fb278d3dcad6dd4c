// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package wasm fetches the WebAssembly modules that extension configurations
// name, keeps them in a directory, and rewrites the configurations so that
// Envoy loads the local file.
//
// The relay hands every ECDS response to [Cache.RewriteResponse]. Resources
// are converted side by side; one whose module cannot be had does not hold up
// the others: it is replaced or left out, and named in the answer. Messages
// are edited on the wire, field by field, so that what is not understood here
// passes untouched.
//
// Modules come by http, https, oci and file. A URL reaches no loopback,
// link-local or metadata address unless it is allowed by configuration; that
// is checked on the address that is dialled. The package never runs a module
// and never holds a whole one in memory.
//
// Goroutines: Run deletes what is not used any more; a download has one, which
// ends with its deadline or with Run.
package wasm
