// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package envoy

import "syscall"

// childAttributes keeps a terminal's interrupt from reaching Envoy before the
// agent has drained it. Only Linux can also tie its life to the agent's.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
