// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package decision computes what an Envoy decides about a request, from the listeners that are
// generated for the Envoy: which filter chain accepts the connection, whether tokens are valid, which
// rules match, and which external authorizers are asked. It evaluates Envoy's configuration and knows
// nothing of policies, so that what it says is what Envoy does. It is pure.
//
// The package knows the filters and matchers that this project generates. It returns an error for a
// matcher that it does not know, and never guesses. Headers that Envoy adds to a request, such as
// x-request-id, are unknown to it.
package decision
