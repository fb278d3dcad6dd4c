// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package config reads the objects that people write (VirtualService,
// ServiceEntry and so on), keeps them up to date, and writes them.
//
// [Decode] turns YAML into valid objects and problems; [Validate] checks one
// object that came from elsewhere. A [Store] is a place of objects: [Memory],
// [FileStore], which follows a directory of YAML files and edits it in place,
// [Aggregate], which joins several stores, and those of the packages below;
// [Open] finds the store for a URL. All kinds pass the suite of package
// storetest. The discovery server reads stores and listens to their events; the
// command line tool uses Decode.
//
// The package never decides what an object means for a proxy, never writes to
// a file what it was not asked to, and never lets one bad object harm another:
// what is wrong becomes a [model.Problem], and the last good version stays in
// force.
//
// [Cache] is the part that stores share: one goroutine calls the handlers. A
// FileStore has a second one that follows its directory; writers work in their
// callers' goroutines under its locks. [Aggregate] adds one goroutine for each
// of its stores.
package config
