// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package etcd keeps configuration objects in etcd.
//
// One object is one key, <prefix>/<group>/<plural>/<namespace>/<name>, with
// "-" for the namespace of objects that have none; its value is the JSON of
// [codec.EncodeJSON], its resource version the revision of the key's last
// change. Writes are transactions that compare this revision. [Open] makes
// the store of a URL; outrigger-control gives it to [config.Open].
//
// The package never writes what it could not read again, never takes an
// object out of force because its value cannot be read, and never ends
// because etcd cannot be reached.
//
// Run keeps two goroutines: one reads all objects, follows their changes and
// starts again when it cannot; the other calls the handlers. Beside them are
// those of etcd's client.
package etcd
