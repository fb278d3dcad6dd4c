// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package exposition merges metrics from several sources into one response to a scraper. It
// supports the three formats of Prometheus: text, OpenMetrics and length-delimited protobuf. Each
// source may use any of them.
//
// Input is processed line by line or family by family, so that memory use does not grow with the
// amount of metrics. The package performs I/O only on the given readers and writers and runs no
// goroutines. It is used by the status server.
package exposition
