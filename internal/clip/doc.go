// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package clip limits text from peers before it becomes part of a log, an error or a status. It is
// pure, and separate from other packages so that pure packages can use it.
package clip
