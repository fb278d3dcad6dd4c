// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package server assembles the control plane: [New] creates its components and binds
// its ports, [Server.Run] runs them and drains the streams at the end.
//
// Config has all settings of flags and environment; the package reads neither. Run
// owns the only group of goroutines, and follows the picture in ARCHITECTURE.md.
package server
