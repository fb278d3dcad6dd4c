// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package localuser tells which user of this machine owns a file or is at the other end
// of a Unix socket. Programs use it for files and sockets in directories that other
// users may write. It has no state.
package localuser
