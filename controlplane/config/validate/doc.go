// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package validate holds the rules for the objects of each kind.
//
// [Object] checks a whole object; [Spec] leaves out the metadata, which a
// decoder checks itself. Errors and warnings name the field, its value and what
// to write instead. One file holds the rules of one kind; [ApplyDefaults] fills
// in the defaults that the API server would. The package does no I/O and never
// changes the object that it checks.
package validate
