// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package file keeps configuration objects in a directory of YAML files.
//
// [Store] follows the directory and edits it in place. An object or a file that
// is not valid becomes a [model.Problem], and its last good version stays in
// force. The store never writes to a file what it was not asked to write.
//
// Run has three goroutines: one follows the directory, one calls the handlers,
// and one logs when reading does not end. Writers work in the goroutines of
// their callers, under a lock that also excludes other processes.
package file
