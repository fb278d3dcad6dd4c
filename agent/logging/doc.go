// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package logging creates the agent's logger: the log flags of Istio's programs, levels
// for each component, targets and rotation, and lines as text or JSON in Istio's
// format. The agent's program calls it. Istio calls a component of a log a scope; only
// flags and JSON keys use that word.
//
// The package never decides what is logged. It runs no goroutines.
package logging
