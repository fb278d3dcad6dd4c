// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package config reads the objects that people write (VirtualService,
// ServiceEntry and so on) and keeps them up to date.
//
// [Decode] turns YAML into valid objects and problems; [Validate] checks one
// object that came from elsewhere. A [Store] is a source of objects:
// [FileStore] follows a directory of YAML files, [Aggregate] joins several
// stores, and [Open] finds the store for a URL. The discovery server reads
// stores and listens to their changes; the command line tool uses Decode.
//
// The package never decides what an object means for a proxy, never changes
// a file, and never lets one bad object harm another: what is wrong becomes
// a [model.Problem], and the last good version stays in force.
//
// Each store runs one goroutine, the one that calls Run: it owns the state,
// publishes it as an immutable snapshot and calls the handlers. [Aggregate]
// adds one goroutine for each of its stores.
package config
