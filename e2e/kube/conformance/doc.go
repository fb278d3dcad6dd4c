// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package conformance runs the conformance tests of the Gateway API, as its
// module has them, against outrigger-control, a real kube-apiserver and real
// Envoys.
//
// There is no kubelet: the package does its work. For each Deployment it runs the module's own echo
// server and makes the Pods and EndpointSlices; for each Gateway that the control plane deploys it
// sets a loopback address in the Service, makes the Pod, and runs outrigger-agent with Envoy.
//
// It is a module of its own so that the suite's dependencies stay out of the
// others.
package conformance
