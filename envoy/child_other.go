// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package envoy

import (
	"errors"
	"syscall"
)

// childAttributes keeps a terminal's interrupt from reaching Envoy before the agent has drained it.
// Only Linux can also tie Envoy's lifetime to the agent's.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// raiseFileLimit returns an error. It is supported on Linux only: other systems may report a hard
// limit that cannot be set.
func raiseFileLimit() (uint64, error) {
	return 0, errors.New("the limit of open files is raised on Linux only")
}
