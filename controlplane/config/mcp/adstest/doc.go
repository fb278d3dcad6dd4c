// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package adstest is an ADS client for tests: it asks for what Envoy would ask
// for and keeps the last state, as the client does that Istio uses in its own
// tests.
//
// [Connect] opens a stream. The client subscribes to clusters and listeners,
// then to the endpoints of the clusters and the routes of the listeners that it
// got, takes every response, and lets a test wait for a state with
// [Client.Wait]. It never checks what it gets, and starts no second stream.
// Each client runs one goroutine, which ends with the stream.
package adstest
