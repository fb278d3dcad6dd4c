// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package denylist contains the identities and certificates that the mesh refuses.
//
// A [List] is parsed from a text file and never changes. A [Follower] reads the file again when it
// changes; if the file is invalid, the last valid list stays in force. Authentication and the
// certificate authority look up single callers; the generators use all entries.
//
// The package itself refuses nothing. It runs one goroutine, in [Follower.Run].
package denylist
