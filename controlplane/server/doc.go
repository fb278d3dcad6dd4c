// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package server puts the control plane together: [New] builds its parts and
// binds its ports, [Server.Run] runs them until the end and drains the streams.
//
// Config has everything that flags and environment can set; the package reads
// neither. Run is the one group of goroutines, and reads as the picture in
// ARCHITECTURE.md.
package server
