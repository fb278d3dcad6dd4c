// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command outrigger-control is the control plane: it reads the configuration
// of the mesh, serves it to the proxies over ADS, and signs their
// certificates. It takes the place of pilot-discovery.
//
// This package holds flags and environment, nothing else: controlplane/server
// puts the parts together.
package main
