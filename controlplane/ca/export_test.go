// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

// Unwatch disables watching of plugged-in files, so that polling detects changes. A file watcher
// does not work with a fake clock.
func (a *Authority) Unwatch() { a.unwatched = true }

// Phase returns the phase of the rotation.
func (a *Authority) Phase() string { return a.state.Load().phase }
