// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package meshconfig holds the defaults of MeshConfig and ProxyConfig, and
// lays YAML over them.
//
// The control plane reads its mesh file with it, the agent resolves its
// ProxyConfig with it, so that both sides agree on what an unset field means.
// An overlay replaces whole top-level fields; what merges instead is listed at
// Parse and ApplyProxyConfig. Unknown fields are tolerated: a newer control
// plane may send fields that this program does not know.
//
// The package is pure: no I/O, no goroutine; its results are new messages
// that share nothing with its inputs.
package meshconfig
