// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package clip bounds what a peer wrote before it is part of a log, an error or a
// status. It is pure, and a package of its own so that pure packages can use it.
package clip
