// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package template executes a user's template of Envoy's bootstrap: Go's
// template language with the functions of Sprig that are common in such files.
//
// Package bootstrap calls Render with the parameters. A mistake in a template,
// such as an endless loop, must end in a sentence and not in a full memory, so
// everything is bounded: steps, depth, what functions make, and the output.
// Functions are pure: none reads a file, the environment, the clock, the
// network or chance. There are no goroutines.
//
// The engine is a copy of Go's text/template without calls of methods. Those
// look methods up by name, which keeps the linker from dropping any method of
// the whole program.
package template
