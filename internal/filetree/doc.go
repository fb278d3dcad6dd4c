// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package filetree reads directories whose content is not trusted. Cyclic links and
// links to the file systems of the kernel or to devices neither exhaust memory nor
// block the reader. A [Follower] delivers the text of one file whenever it changes.
// The package starts no goroutines.
package filetree
