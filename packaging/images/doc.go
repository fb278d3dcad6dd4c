// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command images writes the container images of Outrigger without a container
// engine: for each image an OCI layout with all architectures, for each
// architecture an archive that docker load and ctr images import read, and for
// each a list of what is inside, in SPDX.
//
// The images hold nothing but the programs, a C library for Envoy, and the
// certificates of public authorities; there is no shell. Two runs with the same
// programs write the same bytes.
package main
