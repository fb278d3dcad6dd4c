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

// New fails: only Linux has anonymous files.
func New() (*os.File, error) { return nil, errors.ErrUnsupported }

// Read fails: only Linux has anonymous files.
func Read(int) ([]byte, error) { return nil, errors.ErrUnsupported }
