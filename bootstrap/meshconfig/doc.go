// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package meshconfig holds the defaults of MeshConfig and ProxyConfig and applies YAML overlays to
// them.
//
// The control plane reads its mesh file with this package and the agent resolves its ProxyConfig
// with it, so that both sides agree on the meaning of an unset field. An overlay replaces whole
// top-level fields; Parse and ApplyProxyConfig document the fields that merge instead. Unknown
// fields are ignored, because a newer control plane may send fields that this program does not
// know.
//
// The package is pure: no I/O and no goroutines. Its results are new messages that share nothing
// with its inputs.
package meshconfig
