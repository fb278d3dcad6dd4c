// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package ownnet

import (
	"errors"
	"syscall"
)

func inNamespace() (*syscall.SysProcAttr, error) {
	return nil, errors.New("this system has none")
}

func holdThread() (release func()) { return func() {} }

func loopbackUp() error { return nil }

// reserve does nothing, since there are no abstract Unix sockets.
func reserve(string) error { return nil }
