// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package xds holds xDS resources: their types, serialized resources with the
// hash of their bytes, sorted sets of them, and the table in which equal
// resources are one pointer.
//
// controlplane/generate makes resources, controlplane/discovery compares and sends
// them; neither changes one. The package knows no proxy and no snapshot, and runs
// no goroutines.
package xds
