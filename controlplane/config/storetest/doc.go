// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package storetest is the conformance suite of config.Store: [Run] holds
// every kind of store to the same contract.
//
// Tests of the stores call it. It never looks into a store, and knows no kind
// of store by name: what a backend cannot do is said in [Options].
package storetest
