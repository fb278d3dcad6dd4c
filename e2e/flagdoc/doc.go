// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package flagdoc generates the tables of flags in docs/FLAGS-*.md from the commands. The tests of
// each program use it to compare the documents with the program or, with -update, to regenerate
// them. It is not linked into any program and runs no goroutines.
package flagdoc
