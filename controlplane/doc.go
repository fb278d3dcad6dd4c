// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package controlplane is the root of the control plane's packages, and holds
// nothing but this picture:
//
//	config ──> Change ──> push.Debouncer ──> snapshot.Build ──> discovery
//	(files)               (leading edge)     (immutable)        (queue, streams)
//	                                          registry,          generate
//	                                          model              (shared bytes)
//
//	authn ──> ca      who is calling, and the certificate that the caller gets
//
// controlplane/server joins them. ARCHITECTURE.md tells the story.
package controlplane
