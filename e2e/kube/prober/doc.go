// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package prober holds the agent's application probes against the kubelet's own
// prober: each case is asked straight at an application and through the status
// server, and both must give the same verdict, with the same class of message,
// while the application sees the same request. Hooks are held against what the
// kubelet does with them, in the same way. It is a module of its own, so
// that nothing of Kubernetes reaches the programs of this repository. In the same
// way it holds the merged metrics against Prometheus' own parsers: they must find
// through the merge what they find straight at each source.
//
// It holds tests only; nobody imports it. Goroutines: those of servers, which
// end with the test.
package prober
