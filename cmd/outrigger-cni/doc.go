// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-cni redirects the connections of pods to their proxies without privileged init
// containers. Run by a container runtime, it is a CNI plugin; with the command install it keeps the
// plugin installed on a node.
package main
