// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package goldentest compares what programs print with files of testdata, which -update writes again. It
// runs commands as an operator does, on a terminal, and replaces what differs from run to run.
//
// The package is for tests only. One goroutine reads the output of each command until it ends.
package goldentest
