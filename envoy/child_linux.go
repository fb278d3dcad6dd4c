// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"syscall"
)

// childAttributes ties Envoy to the agent. A separate process group keeps a terminal's interrupt
// from reaching Envoy before the agent has drained it. The parent death signal kills Envoy if the
// agent is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// raiseFileLimit raises the soft limit of open files to the hard limit, for the agent and all its
// children, and returns the new limit. The Go runtime raises the limit for the agent only and
// restores the original limit in children, unless the program sets it explicitly.
func raiseFileLimit() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("raise the soft limit of open files to %d: %w", limit.Max, err)
	}
	return limit.Max, nil
}
