// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package field builds the messages about one field of a configuration object:
// its path, its value in quotes, and a suggestion for a name that is not known.
// All rules and readers of objects use it, so that messages look alike and are
// bounded. It does no I/O.
package field
