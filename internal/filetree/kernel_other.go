// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package filetree

// madeUp returns false: only Linux provides the file system type.
func madeUp(string) bool { return false }
