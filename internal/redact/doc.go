// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package redact replaces the secrets in what is shown or kept: private keys, tokens, and the values
// of fields and headers that are named like a secret. It is pure.
package redact
