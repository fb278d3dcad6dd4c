// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build !linux

package footprint

// forgetProgram does nothing: only Linux says what is mapped.
func forgetProgram() error { return nil }
