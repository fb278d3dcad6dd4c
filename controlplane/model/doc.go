// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package model defines the types of the control plane: user configuration, services
// and endpoints, proxies, changes and problems.
//
// Every other control plane package uses these types. Values are immutable: a pointer
// is shared with other goroutines, and its target must not be modified. The package
// does no I/O, runs no goroutines, and depends on neither gRPC nor Envoy.
package model
