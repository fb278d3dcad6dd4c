// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package kube runs a small Kubernetes for tests: a real kube-apiserver on a real etcd, with its
// own certificate authority, RBAC and no anonymous access, on its own address in 127.77.47.0/24.
// Tests of this module call it: New for a cluster of a test's own, Shared for one of a whole
// package, NewEtcd for etcd alone.
//
// There is no controller manager, scheduler or kubelet: nothing makes service accounts or
// kube-root-ca.crt, fills the roles admin, edit and view, runs pods, deletes objects without
// owners, empties a deleted namespace, or signs requests that the CSR API approved. A test does
// these steps itself if it needs them.
//
// It never touches a cluster or a kubeconfig of the user. Processes are killed when the test ends,
// even if it is killed. Goroutines: one for each process, until it exits.
package kube
