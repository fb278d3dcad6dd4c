// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package revisions keeps the versions of objects and of the mesh config that a control plane has used,
// on disk, so that operators can see what changed, compare two moments and restore a version.
//
// A [Log] is two files of JSON lines. A new file begins with all objects that exist, and replaces
// the older one of the two files; so the log has a bounded size, and for each moment after its
// beginning it contains the version of each object.
package revisions
