// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package inspect implements the commands that query control planes: status shows which proxies are
// up to date, and explain shows the effect of an object and the objects that determine the
// configuration of a proxy. The commands query /debug/proxies and /debug/explain of all named
// control planes at the same time, and list the control planes that they queried, because a replica
// knows only the proxies that are connected to it. The package writes nothing except its output.
//
// The dashboard serves what the commands print as a page. Its server runs in the goroutine of the
// command; a collection runs in that of the request that is the first to need it.
package inspect
