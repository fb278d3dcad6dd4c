// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import "syscall"

// childAttributes ties Envoy to the agent. Its own process group keeps a
// terminal's interrupt from reaching Envoy before the agent has drained it; the
// parent death signal ends it with an agent that was killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
