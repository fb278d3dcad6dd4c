// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package meshtest runs a mesh of outrigger up for tests of other modules. One goroutine reads its
// output until it ends.
package meshtest
