// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package extension makes the filters of WasmPlugins: their places in listeners,
// which name a configuration, and the configurations, which Envoy asks for by
// name (ECDS). Everything in it is a pure function.
//
// The configuration is written for the agent beside Envoy, as Istio's control
// plane writes it: a remote module with environment variables that begin with
// ISTIO_META_ and say how to pull it. The agent fetches the module and hands
// Envoy a file. Docker configs are no part of a snapshot, and of nothing that is
// made here without [WithPullSecret]: in their place stands the reference.
package extension
