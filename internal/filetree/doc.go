// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package filetree reads directories with untrusted content. Cyclic links, and links to devices or
// kernel file systems, neither exhaust memory nor block the reader. A [Follower] delivers the text
// of one file whenever it changes. The package starts no goroutines.
package filetree
