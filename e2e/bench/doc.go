// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command bench measures the programs of this repository and prints one
// table: what they take, what the same work takes without them, the ratio of
// the two, and the target. `make bench` builds the programs and runs it;
// docs/operations/performance.md says what each figure means.
//
// It starts the real programs and a real Envoy as processes of their own, on
// addresses in 127.9.0.0/16 and in a temporary directory, and ends and removes
// all of it, also on Ctrl-C. The peers of those processes, a control plane, a
// proxy or a thousand of them, are this program: relay.go times single
// responses, push.go a change that goes to all proxies, status.go probes and
// scrapes of an application, coldstart.go a request over mutual TLS to agents
// that start without a control plane. floor.go is the
// control plane that does nothing but send bytes, relay_source.go the one at the
// far end of what relay.go times; both are this program again, as processes of
// their own: so that their CPU time can be measured, and that what is handed over
// takes a wake-up by the kernel, as in a mesh.
package main
