// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import "syscall"

// childAttributes gives a program a process group of its own, so that Ctrl-C
// does not end it before the test, and ends it with the test process.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
