// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package filetree

import "golang.org/x/sys/unix"

// madeUp reports whether a path is in a file system that the kernel generates, such as /proc.
func madeUp(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false
	}
	switch uint32(fs.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC:
		return true
	}
	return false
}
