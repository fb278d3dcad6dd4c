// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package inspect holds the commands that ask control planes: status, which
// proxies have what they should, and explain, what became of an object and what
// decides the configuration of a proxy. They ask /debug/proxies and
// /debug/explain of each control plane that is named, all at once, and say which
// ones were asked: a replica knows the proxies that are connected to it. The
// package writes nothing but its output.
package inspect
