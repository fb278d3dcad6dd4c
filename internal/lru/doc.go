// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lru implements a map of bounded size that evicts the least recently used entry.
//
// It exists because the well-known libraries either have a licence that the programs must not link,
// or lack type parameters or ordered iteration. It runs no goroutines.
package lru
