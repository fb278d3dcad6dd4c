// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package webhook answers the API server, which asks whether objects that
// users write are valid. The rules are those of package config; what the API
// server does with the answer is said in its ValidatingWebhookConfiguration,
// which controlplane/kube keeps.
package webhook
