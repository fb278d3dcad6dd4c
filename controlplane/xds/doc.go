// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package xds defines xDS resources: their type URLs, serialized resources with a hash of their
// bytes, sorted sets of resources, and the table that interns equal resources.
//
// Package controlplane/generate creates resources; controlplane/discovery compares and sends them.
// Neither modifies a resource. The package does not depend on proxies or snapshots, and runs no
// goroutines.
package xds
