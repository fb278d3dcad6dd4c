// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package child runs programs as child processes that the kernel kills when this process exits, and
// measures them. The programs behind make bench and make attack use it. One goroutine per child
// waits for its exit.
package child
