// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package schema holds the table of the kinds of configuration objects: names,
// API groups, versions, and the Go types of their spec and status.
//
// Everything that handles objects of any kind reads this table. The rules of a
// kind are in package validate, its reading and writing in package codec.
package schema
