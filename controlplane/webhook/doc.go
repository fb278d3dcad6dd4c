// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package webhook implements the validating admission webhook for objects that users write. The
// rules are those of package config. controlplane/kube maintains the
// ValidatingWebhookConfiguration, which determines how the API server uses the responses.
package webhook
