// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package collateral implements the hidden command collateral, which writes documents of a program's
// commands and completions for shells, and the command version.
//
// The programs that replace Istio's add it to their commands. It reads nothing but the commands and
// runs no goroutines.
package collateral
