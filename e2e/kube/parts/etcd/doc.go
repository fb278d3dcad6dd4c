// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Program etcd is the etcd server as its makers publish it: flags, environment
// and behaviour are theirs. It exists because the module that holds their own
// main package is not published for this release. Package kube of e2e builds
// it and runs it in tests; nothing else uses it.
package main
