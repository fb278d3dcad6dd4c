// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package cni

import (
	"io/fs"

	"github.com/outrigger-mesh/outrigger/internal/durable"
)

// exchange replaces a file and returns expected.
func exchange(path string, data, expected []byte, mode fs.FileMode) ([]byte, error) {
	return expected, durable.Replace(path, data, mode)
}
