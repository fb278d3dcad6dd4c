// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package model holds the nouns of the control plane: user configuration,
// services and endpoints, proxies, changes and problems.
//
// Every other control plane package speaks in these types. Values are built
// once and never changed afterwards: a caller that receives a pointer from this
// package shares it with every other goroutine and must not write to it. The
// package does no I/O, runs no goroutine and knows neither gRPC nor Envoy.
package model
