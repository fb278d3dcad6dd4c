// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package envoytest finds the Envoy that tests run.
//
// It owns nothing, and starts no goroutine. Tests of any package call it.
package envoytest
