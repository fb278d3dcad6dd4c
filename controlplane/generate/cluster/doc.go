// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package cluster builds Envoy clusters from services and DestinationRules: how endpoints are
// discovered, selected and ejected, and how connections to them are made and secured.
//
// All functions are pure.
package cluster
