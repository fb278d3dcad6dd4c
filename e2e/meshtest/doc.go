// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package meshtest runs a mesh of outrigger up for tests. One goroutine waits for its end.
package meshtest
