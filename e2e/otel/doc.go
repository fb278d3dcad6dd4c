// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package otel tests spans and access logs with the receivers of the OpenTelemetry collector, the
// decoder of Datadog's agent and the protocol of SkyWalking. It is a module of its own because of the
// dependencies of the collector.
package otel
