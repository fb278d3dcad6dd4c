// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package output owns the flag -o of the commands of the tool, and writes JSON and YAML for all of them.
// It runs no goroutines.
package output
