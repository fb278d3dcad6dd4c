// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package e2e contains only tests: end-to-end tests that run the real programs with the real Envoy,
// and tests that enforce the rules of the repository (repo_test.go).
//
// No package imports it. The tests use the programs in bin/, where make build installs them, and
// Envoy from ENVOY, bin/envoy or PATH. They leave no goroutines running, and write only to
// temporary directories.
package e2e
