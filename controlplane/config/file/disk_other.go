// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package file

import "errors"

// exchange swaps two files at once, which only Linux can.
func exchange(_, _ string) error { return errors.ErrUnsupported }
