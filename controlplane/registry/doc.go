// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package registry derives services and their endpoints from configuration
// objects.
//
// [Build] turns ServiceEntry and WorkloadEntry objects into [Services]; the
// snapshot calls it whenever one of them changed. It is a pure function: it
// reads no clock, file or network, runs no goroutine, and equal input gives
// equal output. It never fails: what it cannot use becomes a
// [model.Problem], and everything else works.
package registry
