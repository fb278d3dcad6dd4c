// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lru holds a bounded map that drops the entry used longest ago.
//
// It exists because the well-known libraries either have a licence that the
// programs may not link, or neither type parameters nor an order to iterate in.
// It runs no goroutines.
package lru
