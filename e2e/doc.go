// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package e2e holds tests only: those that run the real programs with the
// real Envoy, and the rules of the repository as tests (repo_test.go).
//
// Nobody imports it. The tests take the programs from bin/, where make build
// puts them, and Envoy from ENVOY, bin/envoy or PATH. They run no goroutine
// that outlives its test, and write only to temporary directories.
package e2e
