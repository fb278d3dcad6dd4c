// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package objects implements the commands that read and write the configuration of a mesh: create,
// apply, replace, get, describe, delete, validate, diff and migrate. They work in the same way on
// every kind of config store.
package objects
