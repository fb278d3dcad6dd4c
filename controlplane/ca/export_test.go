// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

// Unwatch makes that changes of plugged-in files are found by looking only: the
// watcher of files is nothing that a fake clock could wait for.
func (a *Authority) Unwatch() { a.unwatched = true }

// Phase returns where a rotation is.
func (a *Authority) Phase() string { return a.state.Load().phase }
