// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package cluster makes Envoy's clusters from services and DestinationRules:
// how endpoints are found, chosen and given up, and how connections to them
// are made and secured.
//
// Everything in it is a pure function of its arguments.
package cluster
