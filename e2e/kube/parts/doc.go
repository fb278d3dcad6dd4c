// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package parts builds the programs that a small Kubernetes is made of,
// kube-apiserver and etcd, from their published modules and keeps them in a
// cache directory of the user. It pins them in the modules kubernetes and
// etcd below it, each with the dependencies that its makers chose, apart from
// those of this project and of each other: another import in a test builds
// nothing anew.
//
// Package kube calls Get before it starts a program, `make kube` calls it by
// itself. Package node of e2e calls GetNode. A build takes minutes, so Get says how far it is. Those who build at
// the same time, in other processes too, wait for the one that came first. It
// never installs anything and downloads only what the go command does.
// Goroutines: one that reports progress while a build runs.
package parts
