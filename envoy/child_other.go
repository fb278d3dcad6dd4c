// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package envoy

import (
	"errors"
	"syscall"
)

// childAttributes keeps a terminal's interrupt from reaching Envoy before the
// agent has drained it. Only Linux can also tie its life to the agent's.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// raiseFileLimit is for Linux: elsewhere a hard limit may be one that cannot be set.
func raiseFileLimit() (uint64, error) {
	return 0, errors.New("the limit of open files is raised on Linux only")
}
