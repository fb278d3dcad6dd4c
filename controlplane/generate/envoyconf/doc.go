// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoyconf are the pieces of Envoy's configuration that several
// generators share: names, addresses, TLS, connection managers, access logs.
// Everything in it is a pure function.
package envoyconf
