// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package columns lays out tables and texts so that their lines fit a terminal. The commands of the tool
// and the mesh on one machine use it. What goes to files and pipes stays whole. It runs no goroutines.
package columns
