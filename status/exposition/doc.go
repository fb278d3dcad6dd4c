// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package exposition puts metrics of several sources together into one answer
// to a scraper. It speaks the three formats of Prometheus: text, OpenMetrics
// and length-delimited protobuf; each source may answer in any of them.
//
// What comes in goes out line by line or family by family, so that memory does
// not grow with the amount of metrics. The package does no I/O but on the
// reader and writer that it is given, and runs no goroutine. The status server
// is its only caller.
package exposition
