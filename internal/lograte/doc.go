// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lograte prevents peers from flooding the log.
//
// Its slog.Handler passes records to another handler, limits how often each message is logged per
// peer and in total, counts suppressed records, and clips long values. Programs wrap the handler of
// their root logger in it, so that it applies to all log records. It does not change messages and
// starts no goroutines other than the timer that reports the counts.
package lograte
