// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package mcpserver serves the objects of a config store to other control planes,
// as Istio's control plane does (MCP over xDS).
//
// A reader is a control plane whose node metadata says GENERATOR=api. Types are
// group/version/Kind; one resource is made for all readers. A reader must be
// listed, authenticated and connected over TLS.
//
// controlplane/discovery owns the streams and asks the [Server] for sets of
// resources. The package runs no goroutines.
package mcpserver
