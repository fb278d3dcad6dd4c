// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package objectstatus writes the status of objects of Istio's kinds: whether the connected
// proxies have acknowledged the last change (the condition Reconciled), the problems of the object
// (validationMessages, and as text the condition PassedAnalysis), and for WorkloadEntry objects
// the health that the agent reports (the condition Healthy).
//
// A [Writer] receives the events of the store and each snapshot. For each object it knows the
// sequence of the snapshot that contained its last change; discovery reports which proxies have
// that snapshot. The Writer works in rounds, so that several changes of an object result in one
// write. It does not repeat its writes, and it keeps what other writers have set. Two replicas or
// a second control plane therefore do not overwrite each other forever: if one of two replicas
// finds a problem with its own proxies, the other one does not overwrite its verdict until the
// first one withdraws it.
//
// The verdict that all proxies have an object stays until the object changes, so that connects and
// disconnects of proxies cause no writes. A change of status never causes a push: [Effective]
// filters out such events.
//
// Goroutines: Run of a Writer owns the rounds; a bounded number of goroutines performs the writes of
// a round. Run of [Verdicts] owns workers that take objects from a queue.
package objectstatus
