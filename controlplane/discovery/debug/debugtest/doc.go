// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package debugtest holds a small mesh, for tests of questions about it.
package debugtest
