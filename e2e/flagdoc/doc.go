// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package flagdoc writes the tables of flags in docs/FLAGS-*.md from the
// commands themselves. The tests of each program call it, to compare the
// documents with the program and, with -update, to write them anew. It is
// linked into no program and runs no goroutine.
package flagdoc
