// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package authentication converts RequestAuthentications to filters of Envoy that validate tokens.
// It is pure.
//
// A request may come without a token. If it has one where an issuer's tokens are expected, the token
// must be valid, or the request is refused. The payload of a valid token is stored in the dynamic
// metadata of the request, where the rules of package authorization read it.
package authentication
