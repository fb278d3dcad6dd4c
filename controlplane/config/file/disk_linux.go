// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import "golang.org/x/sys/unix"

// exchange swaps two files of one file system at once.
func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}
