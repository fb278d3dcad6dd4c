// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package filetree

// madeUp reports whether a path is in a file system whose content the kernel
// makes up, which only Linux tells.
func madeUp(string) bool { return false }
