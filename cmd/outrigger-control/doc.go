// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-control is the control plane: it reads the configuration
// of the mesh, serves it to the proxies over ADS, and signs their
// certificates. It replaces pilot-discovery.
//
// This package contains only flags and environment: package controlplane/server
// assembles and runs the components.
package main
