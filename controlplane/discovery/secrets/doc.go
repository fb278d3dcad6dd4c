// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package secrets serves credentials to proxies: SDS secrets, and plugin
// configurations (ECDS) with their pull secrets.
//
// Secrets are no part of a snapshot. A stream has a [View] of the secrets its proxy
// requests and wakes when one of them changes. They are sent only over TLS, to a
// proven caller, of its own namespace or granted by an object. A refused, missing
// or broken secret is not answered; the refusal is logged and counted.
//
// controlplane/discovery owns the streams. The package never logs a key. A check of
// the caller's right runs in a goroutine that ends with its result.
package secrets
