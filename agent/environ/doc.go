// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package environ is the table of the environment variables of the agent: their
// names, types, defaults and documentation (docs/reference), and the Values that
// they set. Read is pure: it takes the variables as a list; the program reads the
// process's environment.
//
// The package never decides what a value means for a part of the agent; package
// agent does. It runs no goroutines.
package environ
