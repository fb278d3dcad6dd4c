// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package kube

import "syscall"

// childAttributes leaves a program in the process group of the test, so that signals to the group
// reach it. The system has no parent-death signal.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// awaitStopped does nothing: the state of threads is not known here.
func awaitStopped(int) {}
