// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package webhook implements the admission webhooks: a [Validator] of the objects that users write,
// by the rules of package config, and an [Injector] of proxies into pods, by package inject.
// controlplane/kube maintains the webhook configurations, which determine how the API server uses
// the responses.
package webhook
