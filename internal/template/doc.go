// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package template executes a user's template: Go's template language with the Sprig functions that
// are common in such files.
//
// Package bootstrap renders templates of Envoy's bootstrap, controlplane/inject those of pods, with
// functions of its own. A mistake in a template, such as an endless
// loop, must result in an error and not exhaust memory. Therefore steps, depth, allocations of
// functions and the output are limited. Functions are pure: they do not access files, the
// environment, the clock, the network or random numbers. There are no goroutines.
//
// The engine is a copy of Go's text/template without method calls. Method calls look up methods by
// name, which prevents the linker from dropping any unused method of the program.
package template
