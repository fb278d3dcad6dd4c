// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package capture

import (
	"context"
	"errors"
)

var errLinux = errors.New("connections are captured on Linux only")

func replaceTables([]Family) error { return errLinux }
func addRoutes(*Settings) error    { return errLinux }
func removeRoutes(*Settings) error { return errLinux }

func (s *Settings) validate(context.Context) error { return errLinux }

// InNamespace calls a function, or returns an error if there is a path.
func InNamespace(path string, f func() error) error {
	if path != "" {
		return errLinux
	}
	return f()
}

// Check returns an error.
func Check(context.Context, []string) error { return errLinux }

// Captured returns an error.
func Captured(string) (bool, error) { return false, errLinux }
