// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package durable replaces files at once: a reader of a file, even after a loss
// of power, finds the old or the new content, never a part of it. Everything that
// programs write and read again later goes through it. Unlock releases the locks
// that keep programs from writing the same files.
//
// It never decides where files lie or who may read them, and removes no leftovers
// of a program that was killed: the caller knows their names. It runs no goroutines.
package durable
