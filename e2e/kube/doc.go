// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package kube runs a small Kubernetes for tests: a real kube-apiserver on a
// real etcd, with its own certificate authority, RBAC and no anonymous access,
// on an address in 127.77.47.0/24 that it has for itself. Tests of this module
// call it: New for a cluster of a test's own, Shared for one of a whole
// package, NewEtcd for etcd alone.
//
// There is no controller manager, scheduler or kubelet: nothing makes service
// accounts or kube-root-ca.crt, fills the roles admin, edit and view, runs
// pods, collects what lost its owner, empties a namespace that is deleted, or
// signs what the CSR API approved. A test does by hand what it needs of that.
//
// It never touches a cluster or a kubeconfig of the user. Processes die with
// the test, however it ends. Goroutines: one for each process, until it ended.
package kube
