// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package durable replaces files atomically: a reader finds either the old or the new content,
// never a part of it, even after a power failure. Programs use it for all files that they write and
// read again later. Unlock releases the locks that prevent concurrent writers of the same files.
//
// The package does not decide the location or the permissions of files, and does not remove
// temporary files left by a killed program: the caller knows their names. It runs no goroutines.
package durable
