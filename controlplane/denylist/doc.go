// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package denylist holds the identities and certificates that the mesh refuses.
//
// A [List] is parsed from a text file and never changes. A [Follower] reads the
// file again when it changes; a file with an error leaves the last good list in
// force. Who asks: authentication and the certificate authority about one
// caller, the generators about all entries.
//
// The package refuses nothing by itself. It runs one goroutine, in
// [Follower.Run].
package denylist
