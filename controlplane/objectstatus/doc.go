// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package objectstatus says in the status of the objects of Istio's kinds what
// became of them: whether the connected proxies have acknowledged the last
// change (the condition Reconciled), what is wrong with them
// (validationMessages, and in words the condition PassedAnalysis), and of a
// WorkloadEntry what its agent says of the application (the condition Healthy).
//
// A [Writer] hears of the events of the store and of each snapshot. For each
// object it knows the sequence of the snapshot that brought its last change; who
// has that is reported by discovery. It works in rounds: what became of an object in
// the meantime is one write. What it has written it does not write again, and
// what others wrote stays, so that two replicas, or a second control plane, do
// not overwrite each other forever: of two replicas with proxies of their
// own, the one that found something wrong has the word until it takes it back.
//
// A verdict that all proxies have an object stays until the object changes:
// proxies come and go without a write. A status never makes a push: the events
// of status alone are left out with [Effective].
//
// Goroutines: Run owns the rounds; the writes of a round are a bounded number.
package objectstatus
