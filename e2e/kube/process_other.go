// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package kube

import "syscall"

// childAttributes leaves a program in the process group of the test: what
// ends the group ends it too. There is no death signal to ask for.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// awaitStopped does nothing: the state of threads is not known here.
func awaitStopped(int) {}
