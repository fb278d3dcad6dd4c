// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"fmt"
	"syscall"
)

// childAttributes ties Envoy to the agent. Its own process group keeps a
// terminal's interrupt from reaching Envoy before the agent has drained it; the
// parent death signal ends it with an agent that was killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// raiseFileLimit raises the soft limit of open files to the hard one, for the
// agent and for all that it starts, and returns it. Go raises it for the agent
// alone and gives children what was before, unless it is set by a call.
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
