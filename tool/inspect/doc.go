// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package inspect implements the commands that query control planes: status shows which proxies are
// up to date, and explain shows the effect of an object and the objects that determine the
// configuration of a proxy. The commands query /debug/proxies and /debug/explain of all named
// control planes at the same time, and list the control planes that they queried, because a replica
// knows only the proxies that are connected to it. The package writes nothing except its output.
package inspect
