// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package localuser determines which user of this machine owns a file or is the peer of a Unix
// socket. Programs use it for files and sockets in directories that other users may write to. It
// has no state.
package localuser
