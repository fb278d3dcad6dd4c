// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package lograte keeps peers from filling the log.
//
// It owns a slog.Handler that passes lines on to another one, limits how often
// each message is written for each peer and in total, counts what it leaves out,
// and clips long values. Programs wrap the handler of their root logger in it, so
// that no path of the program is exempt. It changes no message and starts no
// goroutine but the timer that reports the count.
package lograte
