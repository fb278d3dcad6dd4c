// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ratelimit implements rate limits per key.
//
// It owns a bounded table of token buckets. Servers, log handlers and the certificate authority use
// it for keys that a peer can choose, such as source addresses. It starts no goroutines, logs
// nothing and reads no clock: callers pass the time.
package ratelimit
