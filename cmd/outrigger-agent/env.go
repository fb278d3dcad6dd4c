// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import "os"

// environment returns the environment of the process. Nothing else reads it.
func environment() []string { return os.Environ() }
