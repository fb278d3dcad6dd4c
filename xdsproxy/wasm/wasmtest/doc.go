// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package wasmtest generates Wasm modules for tests, so that they need neither a compiler nor
// binary files.
package wasmtest
