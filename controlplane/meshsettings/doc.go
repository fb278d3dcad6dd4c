// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package meshsettings follows the mesh config and the networks of a control
// plane, in files or in ConfigMaps.
//
// A [Follower] reads both when it is made, and again when they change. It names
// unknown fields and fields without effect in the log, and keeps the last good
// settings while a source is missing, empty or wrong. It never applies settings:
// the caller of [Follower.Run] does, and can refuse them.
package meshsettings
