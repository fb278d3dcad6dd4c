// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command linux writes packages for machines without Kubernetes: the agent, its Envoy, the control
// plane and the tool, each as .deb and .rpm. Directory files has what the packages contain besides
// the programs: units of systemd, settings, scripts.
//
// Two runs with the same programs write the same bytes. The tests install the packages on a machine
// that they boot in namespaces of its own.
package main
