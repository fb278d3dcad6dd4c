// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package cni sets the rules that redirect connections to Envoy from outside of pods, so that pods
// need no privileged init container. It replaces istio-cni: annotations, settings and names are the
// same. cmd/outrigger-cni calls it.
//
// [Plugin] is a chained CNI plugin. The container runtime runs it for each pod of a node, after the
// plugins that make its network. It asks the API server for the pod and, if the pod has a proxy and
// no init container of its own, sets the rules with package envoy/capture. If it cannot find out,
// the pod does not start, and the kubelet tries again.
//
// [Daemon] runs on each node. It copies the program to the node, adds it to the network's
// configuration, and restores both when others change them. It repairs pods that were started
// without rules: before the installation, or while another program had overwritten the
// configuration. Its Run owns all goroutines.
//
// The package speaks to the API server in JSON over HTTP, because runtimes start it for each pod. It
// never reads the environment, and never changes pods outside of the mesh.
package cni
