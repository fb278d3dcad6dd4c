// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Program etcd is the unmodified etcd server, with its flags, environment and behaviour. It exists
// because the module with its own main package is not published for this release. Package kube of
// e2e builds it and runs it in tests; nothing else uses it.
package main
