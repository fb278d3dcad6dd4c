// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package memory keeps configuration objects in memory only. [Store] serves
// tests and objects that other parts of the program generate. Its Run has one
// goroutine, which calls the handlers.
package memory
