// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command get builds kube-apiserver and etcd into the cache, or reports that they exist. With the
// argument node it also builds the programs of a node. `make kube` runs it, so that the minutes of
// the first build are not part of a test's time.
package main
