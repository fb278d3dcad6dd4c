// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package node runs tests on a Kubernetes of one real node: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kube-proxy, kubelet, containerd and runc.
//
// The tests run inside the node. [Main] starts the test program again as a child of an init process
// in network, mount, process, cgroup, IPC and host name namespaces of its own, with a root file
// system in memory that holds Debian's container runtime. Addresses are therefore fixed and free,
// and several nodes can run on one machine. When the init process ends, however it ends, the kernel
// ends all processes and removes mounts, interfaces and rules. A process outside of the node then
// removes its cgroups, also if the first process was killed.
//
// The programs of Kubernetes are built by package parts of e2e/kube. Package debian of
// packaging/images fetches the pinned packages in debian.lock, and `make images` the images of
// Outrigger. The conformance tests of the Gateway API run in Pods with Istio's echo program, which is
// built from its module. On a machine that allows no namespaces, Main prints a line and runs nothing.
//
// The mesh is installed by `outrigger install`. Injected Pods have an init container that redirects
// their connections, or with a second revision a CNI plugin does, so the tests see what a user of the
// chart gets.
package node
