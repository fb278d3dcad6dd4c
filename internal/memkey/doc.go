// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package memkey passes a key from a supervisor to the program that it starts, in memory only. The
// supervisor creates an anonymous file with New, and each process of the program inherits it and
// reads it with Read. Data that the program encrypts on disk with the key can be decrypted after a
// restart of the program, but not after the supervisor has exited.
//
// The package writes nothing to disk and runs no goroutines. It is separate because two programs
// share the file format.
package memkey
