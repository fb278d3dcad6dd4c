// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package objects is the commands that read and write the configuration of a
// mesh: create, apply, replace, get, describe, delete, validate, diff and
// migrate. They work on every kind of config store in the same way.
package objects
