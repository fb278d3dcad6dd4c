// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package secrets serves credentials to proxies: SDS secrets, and plugin configurations (ECDS)
// with their pull secrets.
//
// Secrets are not part of a snapshot. Each stream has a [View] of the secrets that its proxy
// requests, and wakes when one of them changes. Secrets are sent only over TLS and to a caller
// with a proven identity. They must be in the caller's namespace, or an object must grant access.
// Requests for a refused, missing or invalid secret are not answered; the refusal is logged and
// counted.
//
// controlplane/discovery owns the streams. The package never logs a key. Each authorization check
// of a caller runs in a goroutine that ends with its result.
package secrets
