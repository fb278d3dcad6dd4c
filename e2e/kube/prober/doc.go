// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package prober compares the agent's application probes with the kubelet's own prober: each case
// probes an application directly and through the status server. Both must return the same verdict,
// with the same class of message, and the application must see the same request. Hooks are compared
// with the kubelet's in the same way, and the merged metrics with Prometheus' own parsers: they
// must find through the merge what they find at each source. The shipped alerts are read by
// Prometheus' parsers, too. It is a separate module, so that the
// programs of this repository link no Kubernetes library.
//
// It contains only tests and is not imported. Goroutines: those of servers, until the end of the
// test.
package prober
