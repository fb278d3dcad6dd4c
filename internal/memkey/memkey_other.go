// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package memkey

import (
	"errors"
	"os"
)

// Size is the size of a key, in bytes.
const Size = 32

// New returns an error: only Linux supports anonymous files.
func New() (*os.File, error) { return nil, errors.ErrUnsupported }

// Read returns an error: only Linux supports anonymous files.
func Read(int) ([]byte, error) { return nil, errors.ErrUnsupported }
