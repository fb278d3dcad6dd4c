// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package parts builds the programs that a small Kubernetes is made of, kube-apiserver and etcd,
// from their published modules and keeps them in a cache directory of the user. The modules
// kubernetes and etcd below it pin them with the dependencies of their authors, separate from those
// of this project and of each other, so that another import in a test does not cause a rebuild.
//
// Package kube calls Get before it starts a program, and `make kube` calls it, too. Package node of
// e2e calls GetNode. A build takes minutes, so Get reports progress. Concurrent builds, also in
// other processes, wait for the first one. It never installs anything and downloads only what the
// go command does. Goroutines: one that reports progress while a build runs.
package parts
