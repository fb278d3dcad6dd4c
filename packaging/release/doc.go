// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command release writes the files of a release: for each architecture an archive of the programs
// with Envoy and a list of what is inside, the images, the packages for Linux, the chart, the alerts
// for Prometheus, the changes since the last release, checksums, and a statement of provenance
// (in-toto, SLSA 1.0). With a key it signs checksums and provenance.
//
// Two runs with the same inputs write the same bytes.
package main
