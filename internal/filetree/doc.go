// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package filetree reads directories that somebody else fills. A link that
// leads in a circle, to the file systems of the kernel or to a device neither
// fills the memory nor stops the reader. A [Follower] hands on the text of one
// file whenever it changes. The package starts no goroutines.
package filetree
