// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package logging makes the agent's log: the flags that Istio's programs have for
// it, levels for each scope, targets and rotation, and lines as text or JSON in
// Istio's form. The agent's program calls it.
//
// The package never decides what is logged. It runs no goroutines.
package logging
