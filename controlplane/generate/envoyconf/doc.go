// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoyconf builds the parts of Envoy's configuration that several generators share:
// names, addresses, TLS, connection managers and access logs. All functions are pure.
package envoyconf
