// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package wasmtest makes Wasm modules for tests, byte by byte, so that no
// compiler and no binary file is needed.
package wasmtest
