// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package memkey hands a key from a supervisor to the program that it starts, in
// memory only. The supervisor makes an anonymous file with New and has each
// process of the program inherit it. The program reads it with Read. What the
// program encrypts on disk with the key can be read after a restart of the
// program, and by nobody after the end of the supervisor.
//
// The package writes nothing to disk and runs no goroutines. It has a package of
// its own because the two programs share the form of the file.
package memkey
