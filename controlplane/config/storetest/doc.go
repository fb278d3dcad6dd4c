// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package storetest is the conformance suite of config.Store: [Run] checks that a store fulfills
// the contract that all kinds of stores share.
//
// The tests of the stores call it. It uses only the interface, and contains no code for particular
// kinds of stores: [Options] describe what a backend does not support.
package storetest
