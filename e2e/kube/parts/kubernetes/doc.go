// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Program kube-node is kubelet, kube-proxy, kube-controller-manager and kube-scheduler as
// Kubernetes publishes them, in one program: the first argument names the one to run, the other
// arguments are its flags. A single program links their shared code once. Package node of e2e
// builds it and runs it in tests; nothing else uses it.
package main
