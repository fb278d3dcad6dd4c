// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package footprint

// forgetProgram does nothing: only Linux reports the mappings.
func forgetProgram() error { return nil }
