// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package columns lays out tables so that their lines fit a terminal. The commands of the tool and the
// mesh on one machine use it. It writes nothing and runs no goroutines.
package columns
